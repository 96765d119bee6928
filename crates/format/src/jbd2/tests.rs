//! The fixtures were created by Linux 6.18 and debugfs 1.47.0; see tests/data/README.md.

use super::journal_superblock::RawJournalSuperblock;
use super::*;
use crate::{BlockSize, ChecksumSeed, Corrupt, Place, Problem, VolumeBlock};
use proptest::prelude::*;
use std::mem::offset_of;

const UUID: [u8; 16] = 0x01234567_89ab_cdef_0123_456789abcdef_u128.to_be_bytes();
const BLOCK: usize = 1024;

/// The start of a journal: its superblock, and the log to its end.
struct Journal {
    name: &'static str,
    bytes: &'static [u8],
    sb: JournalSuperblock,
}

fn journals() -> [Journal; 4] {
    [
        ("plain", &include_bytes!("../../tests/data/journal_plain_kernel.bin")[..]),
        ("csum1", include_bytes!("../../tests/data/journal_csum1_async_kernel.bin")),
        ("csum2", include_bytes!("../../tests/data/journal_csum2_debugfs.bin")),
        ("csum3", include_bytes!("../../tests/data/journal_csum3_kernel.bin")),
    ]
    .map(|(name, bytes)| Journal { name, bytes, sb: JournalSuperblock::parse(bytes).unwrap() })
}

impl Journal {
    fn block(&self, number: u32) -> &'static [u8] {
        &self.bytes[number as usize * BLOCK..][..BLOCK]
    }

    /// Walks the log, and checks every checksum; returns a line per block.
    fn walk(&self) -> Vec<String> {
        let layout = self.sb.layout();
        let (mut at, mut crc, mut lines) = (self.sb.start().unwrap(), !0, Vec::new());
        while (at as usize) < self.bytes.len() / BLOCK {
            let (number, block) = (at, self.block(at));
            at += 1;
            let header = JournalBlockHeader::read(block).unwrap();
            match header.kind.unwrap() {
                JournalBlockKind::Descriptor => {
                    layout.verify_tail(block, number).unwrap();
                    crc = crc32_be(crc, block);
                    let tags = JournalTags::parse(block, &layout, number).unwrap();
                    let mut homes = Vec::new();
                    for tag in tags {
                        let data = self.block(at);
                        tag.verify_data(&layout, header.sequence, data, at).unwrap();
                        crc = crc32_be(crc, data);
                        let escaped = if tag.flags.contains(TagFlags::ESCAPE) { "!" } else { "" };
                        homes.push(format!("{}{escaped}", tag.block));
                        at += 1;
                    }
                    lines.push(format!("{} descriptor {}", header.sequence, homes.join(" ")));
                }
                JournalBlockKind::Revoke => {
                    layout.verify_tail(block, number).unwrap();
                    let revokes: Vec<_> = JournalRevokes::parse(block, &layout, number)
                        .unwrap()
                        .map(|b| b.to_string())
                        .collect();
                    lines.push(format!("{} revoke {}", header.sequence, revokes.join(" ")));
                }
                JournalBlockKind::Commit => {
                    JournalCommit::verify_block(block, &layout, number).unwrap();
                    let commit = JournalCommit::parse(block, &layout, number).unwrap();
                    assert_eq!(
                        commit.transaction_crc.is_some(),
                        layout.checksums == JournalChecksums::Commit
                    );
                    commit.verify_transaction(crc, number).unwrap();
                    crc = !0;
                    lines.push(format!("{} commit", header.sequence));
                }
                other => panic!("{other:?} in the log"),
            }
        }
        lines
    }
}

#[test]
fn layouts_have_the_documented_sizes() {
    assert_eq!(size_of::<RawJournalHeader>(), 12);
    assert_eq!(size_of::<RawJournalSuperblock>(), 1024);
    assert_eq!(offset_of!(RawJournalSuperblock, s_feature_compat), 0x24);
    assert_eq!(offset_of!(RawJournalSuperblock, s_nr_users), 0x40);
    assert_eq!(offset_of!(RawJournalSuperblock, s_checksum_type), 0x50);
    assert_eq!(offset_of!(RawJournalSuperblock, s_num_fc_blks), 0x54);
    assert_eq!(offset_of!(RawJournalSuperblock, s_head), 0x58);
    assert_eq!(offset_of!(RawJournalSuperblock, s_checksum), 0xfc);
    assert_eq!(offset_of!(RawJournalSuperblock, s_users), 0x100);
    assert_eq!(size_of::<RawTag>(), 12);
    assert_eq!(size_of::<RawTag3>(), 16);
    assert_eq!(offset_of!(RawCommitBlock, h_chksum), 0x10);
    assert_eq!(offset_of!(RawCommitBlock, h_commit_sec), 0x30);
    assert_eq!(size_of::<RawCommitBlock>(), 0x3c);
    assert_eq!(size_of::<RawFastCommitTlv>(), 4);
    let layout = |wide, checksums| JournalLayout { wide, checksums, seed: ChecksumSeed(0) }.tag_bytes();
    use JournalChecksums::*;
    assert_eq!(
        [None, Commit, V2, V3].map(|c| (layout(false, c), layout(true, c))),
        [(8, 12), (8, 12), (10, 14), (16, 16)]
    );
}

/// Expected block numbers and kinds are from `logdump` of debugfs 1.47.0.
#[test]
fn logs_that_linux_and_debugfs_wrote_are_walked() {
    let [plain, csum1, csum2, csum3] = journals().map(|journal| (journal.sb.layout(), journal.walk()));
    let revoked = |lines: &[String]| lines.iter().find(|line| line.contains("revoke")).cloned();

    assert_eq!((plain.0.wide, plain.0.checksums), (false, JournalChecksums::None));
    let kinds = |lines: &[String]| -> Vec<String> {
        lines.iter().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect()
    };
    let want = ["2 descriptor", "2 commit", "3 revoke", "3 descriptor", "3 commit"];
    assert_eq!(kinds(&plain.1), want);
    assert!(revoked(&plain.1).is_some());

    assert_eq!((csum1.0.wide, csum1.0.checksums), (true, JournalChecksums::Commit));
    assert_eq!(kinds(&csum1.1), want);

    assert_eq!((csum2.0.wide, csum2.0.checksums), (true, JournalChecksums::V2));
    assert_eq!(csum2.1, ["1 descriptor 333 444 555", "1 commit", "2 revoke 77 88", "2 commit"]);

    assert_eq!((csum3.0.wide, csum3.0.checksums), (true, JournalChecksums::V3));
    assert_eq!(kinds(&csum3.1), ["2 descriptor", "2 commit", "3 descriptor", "3 commit", "4 commit"]);
    assert!(csum3.1[2].contains('!'), "a file that starts with the magic number: {}", csum3.1[2]);
}

#[test]
fn writing_gives_the_bytes_that_were_read() {
    for journal in journals() {
        let layout = journal.sb.layout();
        let mut ours = [0xaa; BLOCK];
        journal.sb.write_to(&mut ours);
        assert_eq!(ours, journal.block(0), "superblock of {}", journal.name);
        for number in 1..(journal.bytes.len() / BLOCK) as u32 {
            let block = journal.block(number);
            let Some(header) = JournalBlockHeader::read(block) else { continue };
            let sequence = header.sequence;
            let mut used = BLOCK;
            match header.kind.unwrap() {
                JournalBlockKind::Descriptor => {
                    let mut writer = DescriptorWriter::new(&mut ours, &layout, sequence);
                    assert!(writer.is_empty());
                    for (i, tag) in (1..).zip(JournalTags::parse(block, &layout, number).unwrap()) {
                        let escaped = tag.flags.contains(TagFlags::ESCAPE);
                        assert!(writer.push(tag.block, escaped, journal.block(number + i)));
                    }
                    writer.finish();
                    if journal.name == "csum2" {
                        // debugfs leaves stale memory after the tags and in the checksum.
                        used = 12 + 16 + 3 * layout.tag_bytes();
                        layout.verify_tail(&ours, number).unwrap();
                    }
                }
                JournalBlockKind::Revoke => {
                    let mut writer = RevokeWriter::new(&mut ours, &layout, sequence);
                    for revoked in JournalRevokes::parse(block, &layout, number).unwrap() {
                        assert!(writer.push(revoked));
                    }
                    writer.finish();
                }
                JournalBlockKind::Commit => {
                    JournalCommit::parse(block, &layout, number).unwrap().write_to(&mut ours, &layout)
                }
                _ => unreachable!(),
            }
            let differs = ours[..used].iter().zip(block).position(|(a, b)| a != b);
            assert_eq!(differs, None, "{header} of {}", journal.name);
        }
    }
}

#[test]
fn a_new_superblock_is_that_of_mke2fs() {
    let k1 = BlockSize::from_bytes(1024).unwrap();
    let mut ours = [0; BLOCK];
    JournalSuperblock::new(k1, 1024, 0, JournalIncompat::empty(), UUID, 1).write_to(&mut ours);
    assert_eq!(&ours, include_bytes!("../../tests/data/journal_superblock_mke2fs.bin"));
}

#[test]
fn a_new_superblock_is_valid() {
    let incompat = JournalIncompat::WIDE | JournalIncompat::CHECKSUM_V3 | JournalIncompat::FAST_COMMIT;
    let mut sb = JournalSuperblock::new(BlockSize::K4, 4096, 64, incompat, UUID, 1);
    sb.set_position(Some(17), 9);
    sb.set_errno(5);
    let mut block = [0; 4096];
    sb.write_to(&mut block);
    let read = JournalSuperblock::parse(&block).unwrap();
    read.verify_checksum().unwrap();
    assert_eq!((read.log(), read.fast_commits()), (1..4032, 4033..4096));
    assert_eq!((read.start(), read.sequence(), read.errno(), read.users().len()), (Some(17), 9, 5, 1));
    assert_eq!(read.raw().s_errno.get(), -5i32 as u32);
    sb.set_position(None, 10);
    sb.set_incompat(JournalIncompat::empty());
    assert_eq!((sb.start(), sb.sequence(), sb.log(), sb.fast_commits()), (None, 10, 1..4096, 4096..4096));
    assert_eq!(sb.layout().checksums, JournalChecksums::None);
}

#[test]
fn the_superblock_prints_as_debugfs_names_it() {
    let bytes = include_bytes!("../../tests/data/journal_superblock_fast_commit_kernel.bin");
    let sb = JournalSuperblock::parse(bytes).unwrap();
    sb.verify_checksum().unwrap();
    assert_eq!(
        sb.to_string(),
        "journal superblock: version 2\n\
         \x20 block size:     1024\n\
         \x20 blocks:         1040, log 1 to 1023\n\
         \x20 fast commits:   from block 1025\n\
         \x20 sequence:       2\n\
         \x20 start:          block 1\n\
         \x20 errno:          0\n\
         \x20 compat:         \n\
         \x20 incompat:       journal_64bit journal_checksum_v3 fast_commit\n\
         \x20 uuid:           0123456789abcdef0123456789abcdef\n\
         \x20 user:           00000000000000000000000000000000\n\
         \x20 checksum:       0x7aac9fd2\n"
    );
    assert_eq!(JournalIncompat::from_bits_retain(0x42).to_string(), "journal_64bit FEATURE_I6");
}

#[test]
fn data_that_starts_with_the_magic_number_is_escaped() {
    let mut data = *b"\xc0\x3b\x39\x98 data";
    assert!(needs_escape(&data) && !needs_escape(b"\xc0\x3b\x39\x99") && !needs_escape(b"\xc0\x3b"));
    data[..4].fill(0);
    unescape(&mut data);
    assert_eq!(data, *b"\xc0\x3b\x39\x98 data");
    let [.., csum3] = journals();
    let layout = csum3.sb.layout();
    let (index, _) = (11..)
        .zip(JournalTags::parse(csum3.block(10), &layout, 10).unwrap())
        .find(|(_, tag)| tag.flags.contains(TagFlags::ESCAPE))
        .unwrap();
    let mut data = csum3.block(index).to_vec();
    assert_eq!(data[..14], *b"\0\0\0\0 escape me");
    unescape(&mut data);
    assert!(needs_escape(&data));
}

#[test]
fn full_blocks_refuse_more() {
    for checksums in [JournalChecksums::None, JournalChecksums::V2, JournalChecksums::V3] {
        for wide in [false, true] {
            let layout = JournalLayout { wide, checksums, seed: ChecksumSeed::from_uuid(&UUID) };
            let mut block = [0; BLOCK];
            let mut writer = DescriptorWriter::new(&mut block, &layout, 7);
            let pushed = (0..).take_while(|&n| writer.push(VolumeBlock(n), n == 3, b"data")).count();
            writer.finish();
            assert_eq!(pushed, (BLOCK - 12 - 16 - layout.tail_bytes()) / layout.tag_bytes());
            layout.verify_tail(&block, 1).unwrap();
            let tags: Vec<_> = JournalTags::parse(&block, &layout, 1).unwrap().collect();
            assert!(tags.iter().map(|tag| tag.block.0).eq(0..pushed as u64));
            assert_eq!(tags[3].flags, TagFlags::ESCAPE | TagFlags::SAME_UUID);
            assert!(tags.iter().all(|tag| tag.verify_data(&layout, 7, b"data", 2).is_ok()));
            assert_eq!(
                tags[0].verify_data(&layout, 8, b"data", 2).is_err(),
                checksums != JournalChecksums::None,
                "a block of another transaction"
            );

            let mut writer = RevokeWriter::new(&mut block, &layout, 7);
            let pushed = (0..).take_while(|&n| writer.push(VolumeBlock(n))).count();
            writer.finish();
            assert_eq!(pushed, (BLOCK - 16 - layout.tail_bytes()) / layout.revoke_bytes());
            layout.verify_tail(&block, 1).unwrap();
            let revokes = JournalRevokes::parse(&block, &layout, 1).unwrap();
            assert!(revokes.map(|block| block.0).eq(0..pushed as u64));
        }
    }
}

#[test]
fn fast_commits_that_linux_wrote_are_read() {
    let bytes = include_bytes!("../../tests/data/fast_commit_kernel.bin");
    let (mut lines, mut crc, mut tails) = (Vec::new(), 0, 0);
    for (number, block) in (1025..).zip(bytes.chunks(BLOCK)) {
        for item in FastCommitItems::new(block, 256, number) {
            let item = item.unwrap();
            lines.push(item.record.to_string());
            crc = item.checksum(crc);
            if let FastCommitRecord::Tail { checksum, .. } = item.record {
                assert_eq!(crc, checksum);
                (crc, tails) = (0, tails + 1);
            }
        }
    }
    assert_eq!(tails, 3);
    let tail = |line: &String| line.starts_with("tail: transaction 4");
    let lines: Vec<_> = lines.iter().filter(|line| !tail(line)).collect();
    assert_eq!(
        lines,
        [
            "head: features 0x0, transaction 4",
            "inode: 13, 160 bytes",
            "add range: inode 13, 5 blocks from 0 at block 15361",
            "create: parent 2, inode 13, name \"fcfile\"",
            "inode: 13, 160 bytes",
            "link: parent 2, inode 13, name \"l2\"",
            "inode: 13, 160 bytes",
            "unlink: parent 2, inode 13, name \"l2\"",
            "add range: inode 13, 1 blocks from 0 at block 15361",
            "delete range: inode 13, 2147483647 blocks from 1",
            "delete range: inode 13, 2147483647 blocks from 2147483648",
            "inode: 13, 160 bytes",
        ]
    );
}

mod corruption;
