//! Power cuts while sources are added to a volume.

use extant_block::{MemDevice, Record};
use extant_cache::{CacheConfig, PageCache};
use extant_format::BlockSize;
use extant_fs::{Caller, Cookie, FileOptions, Node, Volume, WriteOptions};
use extant_image::{AddOptions, JournalSize, SizePolicy, Source, Timestamp, VolumeOptions, add, mkfs};
use extant_rt::Rt;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

/// Files of a source. Each has an inode table block of its own, so that the log takes several
/// transactions.
const FILES: usize = 900;
/// Number of power cuts tested.
const CUTS: usize = 30;

fn contents(generation: &str, n: usize) -> String {
    format!("{generation} {n} ").repeat(1 + n % 300)
}

/// Files of a generation: every seventh is a symbolic link, every fifth has a second name.
fn fill(dir: &Path, generation: &str) {
    fs::create_dir(dir).unwrap();
    for n in 0..FILES {
        let path = dir.join(format!("f{n}"));
        match n % 7 {
            0 => symlink(format!("{generation} {n}"), path).unwrap(),
            _ => fs::write(&path, contents(generation, n)).unwrap(),
        }
        if n % 35 == 5 {
            fs::hard_link(dir.join(format!("f{n}")), dir.join(format!("g{n}"))).unwrap();
        }
    }
}

async fn list(dir: &Node) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let mut from = Cookie::START;
    while from != Cookie::END {
        let mut emit = |listed: extant_fs::Listed<'_>| {
            names.push(listed.name.to_vec());
            true
        };
        from = dir.read_dir(from, &mut emit).await.unwrap();
    }
    names.retain(|name| !matches!(&name[..], b"." | b".." | b"lost+found"));
    names
}

/// Names in the root of a disk after recovery, with what they lead to.
fn recovered(disk: Vec<u8>) -> BTreeMap<String, String> {
    let rt = Rt::real(Default::default());
    let cache = PageCache::new(&rt, CacheConfig::with_budget(8 << 20)).unwrap();
    let caller = Caller::root();
    let found = rt.block_on(async {
        let disk = cache.attach(Arc::new(MemDevice::from_bytes(disk)));
        let options = WriteOptions { commit_interval: None, ..WriteOptions::default() };
        let volume = Volume::open_writable(&rt, &disk, options).await.unwrap();
        let root = volume.root_node().await.unwrap();
        let mut found = BTreeMap::new();
        for name in list(&root).await {
            let node = root.lookup(&caller, &name).await.unwrap();
            let text = match node.read_link().await {
                Ok(target) => target,
                Err(_) => {
                    let attributes = node.attributes().unwrap();
                    assert_eq!(attributes.permissions, 0o644, "of {}", name.escape_ascii());
                    let mut text = vec![0; attributes.size as usize];
                    let file = node.open(&caller, FileOptions::default()).unwrap();
                    assert_eq!(file.read(0, &mut text).await.unwrap(), text.len());
                    text
                }
            };
            found.insert(String::from_utf8(name).unwrap(), String::from_utf8(text).unwrap());
        }
        drop(root);
        assert!(volume.problems().is_empty(), "{:?}", volume.problems());
        volume.close().await.unwrap();
        found
    });
    found.unwrap()
}

/// Whether a name leads to the file that the generation has under it.
fn is_of(generation: &str, name: &str, text: &str) -> bool {
    let n: usize = name[1..].parse().unwrap_or_else(|_| panic!("a name that nobody gave: {name}"));
    match n % 7 {
        0 => text == format!("{generation} {n}"),
        _ => text == contents(generation, n),
    }
}

#[test]
fn sources_that_are_added_in_part_replace_files_as_a_whole() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let dir = tempfile::tempdir().unwrap();
    let rt = Rt::real(Default::default());
    let image = dir.path().join("image");
    let volume = VolumeOptions {
        size: SizePolicy::Fixed(24 << 20),
        block_size: BlockSize::from_log_kib(0),
        inode_size: 1024,
        inodes: Some(2048),
        journal: JournalSize::Blocks(1024),
        ..Default::default()
    };
    let epoch = Timestamp { seconds: 1_700_000_000, nanos: 0 };
    mkfs(&image, &volume, epoch, &rt, Arc::new(|_, _| {})).unwrap();
    let disk = Arc::new(MemDevice::from_bytes(fs::read(&image).unwrap()));
    let options = AddOptions { clamp_time: Some(epoch), ..AddOptions::new(&image) };
    let mut log = Default::default();
    let mut base = Vec::new();
    for generation in ["old", "new"] {
        let source = dir.path().join(generation);
        fill(&source, generation);
        base = disk.to_bytes();
        let record = Arc::new(Record::new(disk.clone()));
        add(&options, &[Source::Directory(source)], record.clone(), &rt, Arc::new(|_, _| {})).unwrap();
        log = record.log();
    }
    let all = log.durable_points();
    let mut mixed = 0;
    let cuts = all.iter().rev().step_by(all.len().div_ceil(CUTS).max(1));
    for (events, lucky) in cuts.flat_map(|&at| [(at, false), (at, true)]) {
        let found = recovered(log.disk_after(&base, events, lucky));
        assert_eq!(found.len(), FILES + FILES.div_ceil(35), "after {events} events");
        let replaced = found.iter().filter(|(name, text)| {
            let (is_old, is_new) = (is_of("old", name, text), is_of("new", name, text));
            assert!(is_old || is_new, "/{name} after {events} events: {text:?}");
            is_new
        });
        let replaced = replaced.count();
        mixed += u32::from(replaced > 0 && replaced < found.len());
    }
    assert!(mixed > 0, "{} places, none of them within the addition", all.len());
}
