//! Logs of every shape, written by us and replayed by e2fsck: escaped and revoked blocks, a log
//! that wraps around. Skipped with a message if e2fsprogs is not installed.

use extant_format::jbd2::*;
use extant_format::{BlockSize, VolumeBlock};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const BLOCK: usize = 1024;
const UUID: [u8; 16] = 0x01234567_89ab_cdef_0123_456789abcdef_u128.to_be_bytes();
/// Unused blocks of the volume: written; written with the journal's magic number; revoked; written
/// by the second transaction.
const HOMES: [u64; 4] = [16_000, 16_001, 16_002, 16_003];

fn sh(script: &str) -> (Option<i32>, String) {
    match Command::new("sh").args(["-c", script]).output() {
        Ok(out) => {
            let text =
                String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
            (out.status.code(), text)
        }
        Err(err) => (None, err.to_string()),
    }
}

fn contents(home: u64) -> [u8; BLOCK] {
    let mut data = [home as u8; BLOCK];
    if home == HOMES[1] {
        data[..4].copy_from_slice(&JOURNAL_MAGIC.to_be_bytes());
    }
    data
}

/// Appends blocks to the ring.
struct Log<'a> {
    image: &'a File,
    sb: JournalSuperblock,
    layout: JournalLayout,
    /// Start of the journal on the volume.
    origin: u64,
    at: u32,
}

impl Log<'_> {
    fn append(&mut self, block: &[u8]) {
        self.image.write_all_at(block, (self.origin + u64::from(self.at)) * BLOCK as u64).unwrap();
        self.at += 1;
        if self.at == self.sb.log().end {
            self.at = self.sb.log().start;
        }
    }

    fn transaction(&mut self, sequence: u32, revoked: &[u64], homes: &[u64]) {
        let mut block = [0; BLOCK];
        if !revoked.is_empty() {
            let mut writer = RevokeWriter::new(&mut block, &self.layout, sequence);
            assert!(revoked.iter().all(|&home| writer.push(VolumeBlock(home))));
            writer.finish();
            self.append(&block);
        }
        let mut writer = DescriptorWriter::new(&mut block, &self.layout, sequence);
        let mut all = Vec::new();
        for &home in homes {
            let mut data = contents(home);
            let escaped = needs_escape(&data);
            if escaped {
                data[..4].fill(0);
            }
            assert!(writer.push(VolumeBlock(home), escaped, &data));
            all.push(data);
        }
        writer.finish();
        all.insert(0, block);
        all.iter().for_each(|block| self.append(block));
        let transaction_crc = (self.layout.checksums == JournalChecksums::Commit)
            .then(|| transaction_crc(all.iter().map(|block| &block[..])));
        let commit = JournalCommit { sequence, seconds: 1_700_000_000, nanoseconds: 5, transaction_crc };
        commit.write_to(&mut block, &self.layout);
        self.append(&block);
    }
}

fn replay(image: &Path, compat: u8, incompat: JournalIncompat) -> Result<(), String> {
    let path = image.display();
    let (code, text) = sh(&format!(
        "rm -f {path}; mke2fs -q -t ext4 -b {BLOCK} -J size=1 {path} 16M && debugfs -w -R 'feature needs_recovery' {path} && \
         echo && debugfs -R 'bmap <8> 0' {path}"
    ));
    let origin = text.lines().find_map(|line| line.trim().parse::<u64>().ok());
    let (Some(0), Some(origin)) = (code, origin) else { return Err(text) };

    let file = File::options().read(true).write(true).open(image).unwrap();
    let k1 = BlockSize::from_bytes(BLOCK as u32).unwrap();
    let mut sb = JournalSuperblock::new(k1, 1024, 0, incompat, UUID, 1);
    sb.set_position(Some(1019), 5);
    let mut block = [0; BLOCK];
    sb.write_to(&mut block);
    block[0x27] = compat;
    file.write_all_at(&block, origin * BLOCK as u64).unwrap();
    let sb = JournalSuperblock::parse(&block).unwrap();
    let mut log = Log { image: &file, layout: sb.layout(), origin, at: sb.start().unwrap(), sb };
    log.transaction(5, &[], &HOMES[..3]);
    log.transaction(6, &HOMES[2..3], &HOMES[3..]);
    assert!(log.at < 100, "the log wrapped around");
    // A commit block with the wrong transaction number: the log ends before it.
    log.transaction(9, &[], &HOMES[..1]);

    let (code, text) = sh(&format!("e2fsck -fy {path}"));
    assert!(matches!(code, Some(0 | 1)), "{incompat}: {text}");
    assert!(text.contains("recovering journal"), "{incompat}: {text}");
    for home in HOMES {
        let mut found = [0xee; BLOCK];
        file.read_exact_at(&mut found, home * BLOCK as u64).unwrap();
        let want = if home == HOMES[2] { [0; BLOCK] } else { contents(home) };
        assert!(found == want, "block {home} with journal features {incompat}, compat {compat}:\n{text}");
    }
    Ok(())
}

#[test]
fn e2fsck_replays_what_we_write() {
    if !extant_testbed::have(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    use JournalIncompat as I;
    for wide in [I::empty(), I::WIDE] {
        for (compat, checksums) in
            [(0, I::empty()), (1, I::empty()), (1, I::ASYNC_COMMIT), (0, I::CHECKSUM_V2), (0, I::CHECKSUM_V3)]
        {
            replay(&image, compat, I::REVOKE | wide | checksums).unwrap();
        }
    }
}
