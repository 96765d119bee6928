//! Reading around blocks that the device cannot read, and around damaged maps.

use super::ends::{Gate, created, image, opened, world};
use super::paged::cached;
use crate::{Chunk, Damage, Error, Follow, Lost, OpenOptions, RunState, Volume, WalkOptions};
use extant_block::{Bio, Claim, Device, IoError, IoErrorKind, Limits, MemDevice, Op, Sector};
use extant_format::{FileKind, Inode, InodeNumber};
use extant_rt::Rng;
use parking_lot::Mutex;
use std::sync::Arc;

/// A device whose reads fail entirely if they overlap one of these byte ranges.
#[derive(Debug)]
pub(super) struct Bad {
    memory: MemDevice,
    ranges: Mutex<Vec<(u64, u64)>>,
}

impl Bad {
    pub(super) fn new(image: &[u8], ranges: &[(u64, u64)]) -> Arc<Self> {
        Arc::new(Self { memory: MemDevice::from_bytes(image.to_vec()), ranges: Mutex::new(ranges.to_vec()) })
    }
}

impl Device for Bad {
    fn limits(&self) -> &Limits {
        self.memory.limits()
    }

    fn submit(&self, bio: Bio) {
        let start = bio.start.0 * Sector::BYTES;
        let meets = |&(from, to): &(u64, u64)| start < to && from < start + bio.bytes;
        match bio.op == Op::Read && self.ranges.lock().iter().any(meets) {
            true => bio.end_as("bad", Err(IoErrorKind::Os(5))),
            false => self.memory.submit(bio),
        }
    }

    fn claim(&self) -> Result<Claim, IoError> {
        Ok(Claim::default())
    }
}

const REPORT: OpenOptions =
    OpenOptions { damage: Damage::Report, superblock_offset: None, ignore_journal: false };

pub(super) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| rng.next_u64() as u8 | 1).collect()
}

pub(super) async fn reading(device: Arc<dyn Device>) -> Volume {
    Volume::open(device, REPORT).await.unwrap()
}

/// Everything that a stream returns: bytes, with `None` for lost ones, and the parts reported as
/// lost.
async fn streamed(volume: &Volume, inode: Inode) -> (Vec<Option<u8>>, Vec<Lost>) {
    let (mut bytes, mut lost) = (Vec::new(), Vec::new());
    let mut stream = volume.stream(inode).await.unwrap();
    loop {
        match stream.next().await {
            Ok(Some(Chunk::Data { offset, bytes: data })) => {
                assert_eq!(offset, bytes.len() as u64, "pieces lie end to end");
                bytes.extend(data.iter().map(|&byte| Some(byte)));
            }
            Ok(Some(Chunk::Hole { offset, bytes: len })) => {
                assert_eq!(offset, bytes.len() as u64, "pieces lie end to end");
                bytes.resize(bytes.len() + len as usize, Some(0));
            }
            Ok(None) => return (bytes, lost),
            Err(part) => {
                assert!(part.offset == bytes.len() as u64 && part.bytes > 0, "{part}");
                bytes.resize(bytes.len() + part.bytes as usize, None);
                lost.push(part);
            }
        }
    }
}

/// Checks that a file's contents are correct outside the lost ranges, and correct or missing within
/// them.
fn check(what: &str, expected: &[u8], read: &[Option<u8>], lost: &[(u64, u64)]) {
    assert_eq!(read.len(), expected.len(), "{what}");
    for (at, (&read, &byte)) in read.iter().zip(expected).enumerate() {
        let is_lost = lost.iter().any(|&(from, to)| (from..to).contains(&(at as u64)));
        let is_right = read == Some(byte) || (is_lost && read.is_none());
        assert!(is_right, "{what}: byte {at} is {read:?}, lost {lost:?}");
    }
}

fn ranges(lost: &[Lost]) -> Vec<(u64, u64)> {
    lost.iter().map(|part| (part.offset, part.end())).collect()
}

/// Builds a volume of 32 MiB. mke2fs warns about block sizes that Linux does not support on this
/// machine.
pub(super) fn image_of_any_block_size(args: &str) -> Option<Vec<u8>> {
    if !crate::testbed::have_tools() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, vec![0; 32 << 20]).unwrap();
    let args: Vec<&str> = args.split(' ').chain(["-F", "-q", path.to_str().unwrap()]).collect();
    crate::testbed::run("mke2fs", &args);
    Some(std::fs::read(path).unwrap())
}

/// The device offset of byte `at` of a file.
pub(super) async fn place_of(volume: &Volume, inode: &Inode, at: u64) -> u64 {
    let bytes = u64::from(volume.superblock().block_size().bytes());
    let mut runs = volume.runs(inode);
    while let Some(run) = runs.next().await.unwrap() {
        if let (RunState::Written(first), true) = (run.state, at / bytes < run.logical + run.blocks) {
            return (first.0 + at / bytes - run.logical) * bytes + at % bytes;
        }
    }
    panic!("byte {at} is not mapped")
}

#[test]
fn a_bad_sector_in_a_large_file_costs_its_block_only() {
    const LEN: usize = 5_000_000;
    for (args, block) in
        [("-t ext4 -b 4096 -N 64", 4096), ("-t ext2 -b 1024 -N 64", 1024), ("-t ext4 -b 65536 -N 64", 65536)]
    {
        let Some(empty) = image_of_any_block_size(args) else { return };
        let sim = world();
        sim.rt()
            .block_on(async {
                let expected = noise(1, LEN);
                let gate = Gate::new(&empty);
                let (volume, _cache) = opened(sim.rt(), &gate).await;
                created(&volume, b"file").await.write(0, &expected).await.unwrap();
                volume.close().await.unwrap();
                let image = gate.bytes();
                let volume = reading(Bad::new(&image, &[])).await;
                let inode = volume.resolve(b"/file", Follow::No).await.unwrap();
                // Blocks larger than a disk's sectors are read in pieces of sector size.
                let unit = 4096.min(block);
                let mut rng = Rng::new(2);
                let mut tries: Vec<Vec<u64>> = (0..6).map(|_| vec![rng.below(LEN as u64)]).collect();
                tries.extend([vec![0], vec![LEN as u64 - 1], vec![100_000, 100_000 + unit, 3_000_000]]);
                for bad in tries {
                    let mut lost: Vec<(u64, u64)> = Vec::new();
                    let mut sectors = Vec::new();
                    for &at in &bad {
                        let sector = place_of(&volume, &inode, at).await / 512 * 512;
                        sectors.push((sector, sector + 512));
                        let (from, to) = (at / unit * unit, (at / unit * unit + unit).min(LEN as u64));
                        match lost.last_mut().filter(|last| last.1 == from) {
                            Some(last) => last.1 = to,
                            None => lost.push((from, to)),
                        }
                    }
                    let device = Bad::new(&image, &sectors);
                    let what = format!("{args}, bad bytes {bad:?}");
                    let volume = reading(device.clone()).await;
                    let (read, parts) = streamed(&volume, inode.clone()).await;
                    check(&what, &expected, &read, &lost);
                    assert_eq!(ranges(&parts), lost, "{what}");
                    assert!(parts.iter().all(|part| matches!(part.error, Error::Io(_))), "{what}: {parts:?}");

                    // A read returns the bytes before the first unreadable one, and then the error,
                    // with and without pages.
                    let (paged, _cache) = cached(sim.rt(), device.clone()).await;
                    for volume in [volume, paged] {
                        let file = volume.open_file(inode.clone()).await.unwrap();
                        let mut all = vec![0; LEN];
                        if lost[0].0 > 0 {
                            assert_eq!(file.read_at(0, &mut all).await.unwrap() as u64, lost[0].0, "{what}");
                            assert_eq!(all[..lost[0].0 as usize], expected[..lost[0].0 as usize], "{what}");
                        }
                        assert!(
                            matches!(file.read_at(lost[0].0, &mut all).await, Err(Error::Io(_))),
                            "{what}"
                        );
                        if lost[0].1 < LEN as u64 {
                            let read = file.read_at(lost[0].1, &mut all[..1]).await.unwrap();
                            assert_eq!((read, all[0]), (1, expected[lost[0].1 as usize]), "{what}");
                        }
                    }

                    // Through the cache of a volume open for writing, the whole page is lost.
                    let (volume, _cache) = super::ends::opened_on(sim.rt(), device).await;
                    let (read, parts) = streamed(&volume, inode.clone()).await;
                    let lost: Vec<_> = ranges(&parts);
                    check(&what, &expected, &read, &lost);
                    for &(from, to) in &lost {
                        assert!(to - from <= bad.len() as u64 * 4096, "{what}: {lost:?}");
                    }
                    for at in &bad {
                        assert!(lost.iter().any(|(from, to)| (from..to).contains(&at)), "{what}: {lost:?}");
                    }
                    let file = volume.open_file(inode.clone()).await.unwrap();
                    drop(file);
                    let open = volume.open_for_writing(inode.number, Default::default()).await.unwrap();
                    let mut all = vec![0; LEN];
                    let first = lost[0].0;
                    if first > 0 {
                        assert_eq!(open.read(0, &mut all).await.unwrap() as u64, first, "{what}");
                        let (buf, read) = open.read_direct(0, extant_block::Buf::zeroed(8 << 20)).await;
                        assert_eq!(read.unwrap() as u64, first, "{what}");
                        assert_eq!(buf[..first as usize], expected[..first as usize], "{what}");
                    }
                    assert!(matches!(open.read(first, &mut all).await, Err(Error::Io(_))), "{what}");
                }
            })
            .unwrap();
    }
}

#[test]
fn a_bad_sector_among_metadata_costs_what_lies_in_its_block() {
    const FILES: usize = 200;
    let Some(empty) =
        image(16, "-t ext4 -b 1024 -N 512 -I 256 -E hash_seed=0f0e0d0c-0b0a-0908-0706-050403020100")
    else {
        return;
    };
    let sim = world();
    sim.rt()
        .block_on(async {
            let gate = Gate::new(&empty);
            let (volume, _cache) = opened(sim.rt(), &gate).await;
            for n in 0..FILES {
                let name = format!("a-file-with-a-rather-long-name-{n:04}");
                created(&volume, name.as_bytes()).await.write(0, &[n as u8 | 1; 100]).await.unwrap();
            }
            volume.close().await.unwrap();
            let image = gate.bytes();
            let volume = reading(Bad::new(&image, &[])).await;
            let root = volume.root().await.unwrap();
            let all = volume.list(&root).await.unwrap().len();
            assert_eq!(all, FILES + 1);
            let first = volume.resolve(b"/a-file-with-a-rather-long-name-0100", Follow::No).await.unwrap();
            let (table, _) = volume.view().locate(first.number).await.unwrap();
            let group = volume.group(extant_format::Group(0)).await.unwrap();
            let dir = place_of(&volume, &root, 3 * 1024).await;
            // Adjacent blocks are read together with it.
            for (what, at, files_lost, names_lost) in [
                ("a block of the inode table", table.0 * 1024, 4, 0),
                ("a block of the directory", dir, 0, 30),
                ("the block bitmap", group.block_bitmap.0 * 1024, 0, 0),
                ("the inode bitmap", group.inode_bitmap.0 * 1024, 0, 0),
            ] {
                let volume = reading(Bad::new(&image, &[(at, at + 512)])).await;
                let mut walk =
                    volume.walk(&root, WalkOptions { inodes: true, ..Default::default() }).await.unwrap();
                let (mut names, mut failed, mut parts) = (0, 0, Vec::new());
                while let Some(next) = walk.next().await {
                    match next {
                        Ok(entry) if entry.kind == Some(FileKind::Regular) => {
                            names += 1;
                            let (read, lost) = streamed(&volume, entry.inode.unwrap()).await;
                            assert!(lost.is_empty() && read.len() == 100, "{what}");
                        }
                        Ok(_) => {}
                        Err(failure) => match failure.error {
                            Error::Lost(lost) => parts.push((lost.offset, lost.end())),
                            Error::Io(_) => failed += 1,
                            error => panic!("{what}: {error}"),
                        },
                    }
                }
                assert_eq!(failed, files_lost, "{what}");
                assert!(names + failed + names_lost >= FILES, "{what}: {names} names of {FILES}");
                let lost = if names_lost > 0 { vec![(3 * 1024, 4 * 1024)] } else { vec![] };
                assert_eq!(parts, lost, "{what}");
                if names_lost == 0 {
                    continue;
                }
                // Names that can be read are found. For the others, it is unknown whether they
                // exist.
                let (mut found, mut unknown) = (0, 0);
                for n in 0..FILES {
                    let name = format!("a-file-with-a-rather-long-name-{n:04}");
                    match volume.lookup(&root, name.as_bytes()).await {
                        Ok(Some(_)) => found += 1,
                        Err(Error::Lost(_)) => unknown += 1,
                        other => panic!("{name}: {other:?}"),
                    }
                }
                assert_eq!((found, found + unknown), (names, FILES), "{what}");
                let listed = volume.list(&root).await.unwrap();
                // The place of lost+found depends on its hash.
                let ours = listed.iter().filter(|entry| entry.name.starts_with(b"a-file"));
                assert_eq!(ours.count(), names);
                assert!(volume.problems().iter().any(|problem| matches!(problem, Error::Lost(_))));
            }
        })
        .unwrap();
}

/// The bytes of a file of `blocks` blocks of 1 KiB, each filled with its number. If `sparse`, every
/// other block is a hole.
fn numbered(blocks: u32, sparse: bool) -> Vec<u8> {
    (0..blocks).flat_map(|n| if sparse && n % 2 == 1 { [0; 1024] } else { [n as u8 | 1; 1024] }).collect()
}

#[test]
fn a_damaged_map_costs_what_it_no_longer_tells() {
    for (args, sparse) in
        [("-t ext2 -b 1024 -N 64", false), ("-t ext4 -b 1024 -N 64 -O ^metadata_csum", true)]
    {
        let Some(empty) = image(16, args) else { return };
        let sim = world();
        sim.rt()
            .block_on(async {
                let expected = numbered(3000, sparse);
                let gate = Gate::new(&empty);
                let (volume, _cache) = opened(sim.rt(), &gate).await;
                let file = created(&volume, b"file").await;
                for (n, block) in expected.chunks(1024).enumerate().filter(|(_, block)| block[0] != 0) {
                    file.write(n as u64 * 1024, block).await.unwrap();
                }
                file.set_size(expected.len() as u64).await.unwrap();
                drop(file);
                volume.close().await.unwrap();
                let image = gate.bytes();
                let volume = reading(Bad::new(&image, &[])).await;
                let inode = volume.resolve(b"/file", Follow::No).await.unwrap();
                let damages =
                    if sparse { tree_damages(&inode, &image) } else { pointer_damages(&inode, &image) };
                for (what, damaged, lost) in damages {
                    let what = format!("{args}: {what}");
                    let volume = reading(Bad::new(&damaged, &[])).await;
                    let inode = volume.resolve(b"/file", Follow::No).await.unwrap();
                    let (read, parts) = streamed(&volume, inode.clone()).await;
                    check(&what, &expected, &read, &lost);
                    assert_eq!(ranges(&parts), lost, "{what}");
                    assert!(
                        parts.iter().all(|part| matches!(part.error, Error::Corrupt(_))),
                        "{what}: {parts:?}"
                    );
                    // The same holds on a volume open for writing, but writes to damaged parts are
                    // refused.
                    let (volume, _cache) = super::ends::opened_on(sim.rt(), Bad::new(&damaged, &[])).await;
                    let (read, parts) = streamed(&volume, inode.clone()).await;
                    // At most the pages around the damage are lost.
                    let pages = in_pages(&lost, expected.len() as u64);
                    let read_as_lost = ranges(&parts);
                    check(&what, &expected, &read, &read_as_lost);
                    assert!(covers(&read_as_lost, &lost), "{what}: {read_as_lost:?}, {lost:?}");
                    assert!(covers(&pages, &read_as_lost), "{what}: {read_as_lost:?}, {pages:?}");
                    let file = volume.open_for_writing(inode.number, Default::default()).await.unwrap();
                    for &(from, to) in &lost {
                        for at in [from, to - 1] {
                            let refused = file.write(at, b"x").await;
                            assert!(
                                matches!(refused, Err(Error::Corrupt(_))),
                                "{what}: byte {at}: {refused:?}"
                            );
                        }
                    }
                    let mut byte = [0];
                    let first = lost[0].0;
                    assert!(matches!(file.read(first, &mut byte).await, Err(Error::Corrupt(_))), "{what}");
                    let mut all = vec![0; expected.len()];
                    if pages[0].0 > 0 {
                        let read = file.read(0, &mut all).await.unwrap() as u64;
                        assert_eq!(read, pages[0].0, "{what}");
                    }
                }
            })
            .unwrap();
    }
}

/// Whether each of the `inner` ranges lies within one of the `outer`.
fn covers(outer: &[(u64, u64)], inner: &[(u64, u64)]) -> bool {
    inner.iter().all(|&(from, to)| outer.iter().any(|&(first, end)| first <= from && to <= end))
}

/// The pages that these ranges make unreadable.
fn in_pages(lost: &[(u64, u64)], end: u64) -> Vec<(u64, u64)> {
    let mut pages: Vec<(u64, u64)> = Vec::new();
    for &(from, to) in lost {
        let (from, to) = (from / 4096 * 4096, to.next_multiple_of(4096).min(end));
        match pages.last_mut().filter(|last| last.1 >= from) {
            Some(last) => last.1 = last.1.max(to),
            None => pages.push((from, to)),
        }
    }
    pages
}

type Damaged = (&'static str, Vec<u8>, Vec<(u64, u64)>);

const WILD: [u8; 4] = 0x0fff_ffff_u32.to_le_bytes();

fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize
}

/// The image with some bytes changed.
fn with(image: &[u8], changes: &[(usize, &[u8])]) -> Vec<u8> {
    let mut damaged = image.to_vec();
    for &(at, bytes) in changes {
        damaged[at..at + bytes.len()].copy_from_slice(bytes);
    }
    damaged
}

/// Offset of the inode's `i_block` in the image, found by its contents.
fn i_block(inode: &Inode, image: &[u8]) -> usize {
    let map = &inode.map()[..];
    image.windows(60).position(|bytes| bytes == map).expect("the inode is on the volume")
}

fn blocks(from: u64, to: u64) -> (u64, u64) {
    (from * 1024, to * 1024)
}

/// Ways to damage a pointer map of 3,000 blocks, and the bytes that each one loses.
fn pointer_damages(inode: &Inode, image: &[u8]) -> Vec<Damaged> {
    let map = i_block(inode, image);
    let [indirect, double] = [12, 13].map(|n| word(image, map + n * 4) * 1024);
    let second = word(image, double) * 1024;
    let garbage = [0xff; 1024];
    vec![
        ("a direct pointer", with(image, &[(map + 4, &WILD)]), vec![blocks(1, 2)]),
        ("a pointer of the indirect block", with(image, &[(indirect + 400, &WILD)]), vec![blocks(112, 113)]),
        (
            "two pointers side by side and one alone",
            with(image, &[(indirect + 400, &WILD), (indirect + 404, &WILD), (indirect + 412, &WILD)]),
            vec![blocks(112, 114), blocks(115, 116)],
        ),
        ("the pointer to the indirect block", with(image, &[(map + 48, &WILD)]), vec![blocks(12, 268)]),
        ("the indirect block", with(image, &[(indirect, &garbage)]), vec![blocks(12, 268)]),
        ("the second indirect block", with(image, &[(second, &garbage)]), vec![blocks(268, 524)]),
        (
            "a pointer of the double indirect block",
            with(image, &[(double + 4, &WILD)]),
            vec![blocks(524, 780)],
        ),
        (
            "the pointer to the double indirect block",
            with(image, &[(map + 52, &WILD)]),
            vec![blocks(268, 3000)],
        ),
        ("the double indirect block", with(image, &[(double, &garbage)]), vec![blocks(268, 3000)]),
    ]
}

/// Ways to damage an extent tree of 1,500 extents, one for every other block, and the bytes that
/// each one loses.
fn tree_damages(inode: &Inode, image: &[u8]) -> Vec<Damaged> {
    let map = i_block(inode, image);
    // Find the first and the second leaf at any depth, by following the first entries.
    let (mut node, mut depth) = (map, image[map + 6]);
    let mut parent = map;
    while depth > 0 {
        parent = node;
        node = word(image, node + 12 + 4) * 1024;
        depth -= 1;
    }
    let count = u64::from(u16::from_le_bytes([image[node + 2], image[node + 3]]));
    let second = word(image, parent + 24) as u64;
    assert!(count > 20 && second == count * 2, "leaves of {count} extents; the second begins at {second}");
    let extent = |n: usize| node + 12 + n * 12;
    vec![
        ("an extent outside the volume", with(image, &[(extent(10) + 8, &WILD)]), vec![blocks(20, 21)]),
        ("an extent without length", with(image, &[(extent(10) + 4, &[0, 0])]), vec![blocks(19, 22)]),
        ("an extent over its neighbour", with(image, &[(extent(10) + 4, &[3, 0])]), vec![blocks(19, 24)]),
        ("a garbage leaf", with(image, &[(node, &[0x55; 1024])]), vec![blocks(0, second)]),
        (
            "a pointer to a leaf outside the volume",
            with(image, &[(parent + 12 + 4, &WILD)]),
            vec![blocks(0, second)],
        ),
        ("the root", with(image, &[(map, &[0; 12])]), vec![blocks(0, 3000)]),
    ]
}

#[test]
fn a_hostile_map_ends_in_bounded_time() {
    let Some(empty) = image(16, "-t ext2 -b 1024 -N 64") else { return };
    let sim = world();
    sim.rt()
        .block_on(async {
            let gate = Gate::new(&empty);
            let (volume, _cache) = opened(sim.rt(), &gate).await;
            created(&volume, b"file").await.write(0, &numbered(3000, false)).await.unwrap();
            volume.close().await.unwrap();
            let image = gate.bytes();
            let volume = reading(Bad::new(&image, &[])).await;
            let inode = volume.resolve(b"/file", Follow::No).await.unwrap();
            let map = i_block(&inode, &image);
            let double = word(&image, map + 52);
            let at = double * 1024;
            // All pointers lead back to this block, or every other one leads nowhere; the volume
            // claims to be large.
            let here = (double as u32).to_le_bytes();
            for other in [here, WILD] {
                let cycle: Vec<u8> = [here, other].concat().repeat(128);
                let mut damaged = with(&image, &[(at, &cycle), (map + 56, &here)]);
                let size = (4_u64 << 30).to_le_bytes();
                let inode_at = map - 0x28;
                damaged[inode_at + 4..inode_at + 8].copy_from_slice(&size[..4]);
                damaged[inode_at + 108..inode_at + 112].copy_from_slice(&size[4..]);
                for claims in [false, true] {
                    if claims {
                        // Two groups; the device has no block of the second.
                        let blocks = word(&damaged, 1024 + 4) as u32 * 2 - 1;
                        let inodes = word(&damaged, 1024) as u32 * 2;
                        damaged[1024..1028].copy_from_slice(&inodes.to_le_bytes());
                        damaged[1028..1032].copy_from_slice(&blocks.to_le_bytes());
                    }
                    let volume = reading(Bad::new(&damaged, &[])).await;
                    let inode = volume.inode(inode.number).await.unwrap();
                    let mut stream = volume.stream(inode).await.unwrap();
                    let (mut pieces, mut bytes) = (0, 0);
                    loop {
                        match stream.next().await {
                            Ok(Some(Chunk::Data { bytes: data, .. })) => bytes += data.len(),
                            Ok(Some(Chunk::Hole { .. })) | Err(_) => pieces += 1,
                            Ok(None) => break,
                        }
                    }
                    assert!(bytes <= damaged.len(), "{bytes} bytes of a volume of {}", damaged.len());
                    assert!(pieces <= 16384 * 256, "{pieces} pieces");
                }
            }
        })
        .unwrap();
}

#[test]
fn reads_at_any_offset_agree_with_the_model() {
    if !crate::testbed::have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    std::fs::create_dir_all(source.join("dir/sub")).unwrap();
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for (name, len) in
        [("empty", 0), ("five", 5), ("head", 60), ("tail", 130), ("block", 1024), ("large", 300_001)]
    {
        files.push((name.into(), noise(len as u64, len)));
    }
    let mut sparse = vec![0; 400_000];
    sparse[100_000..150_000].fill(7);
    sparse[399_000..].fill(9);
    files.push(("sparse".into(), sparse));
    for (name, bytes) in &files {
        std::fs::write(source.join(name), bytes).unwrap();
    }
    std::os::unix::fs::symlink("short", source.join("fast")).unwrap();
    std::os::unix::fs::symlink("x".repeat(200), source.join("slow")).unwrap();
    let path = dir.path().join("image");
    let args = format!("-t ext4 -b 1024 -N 128 -I 256 -O inline_data -d {}", source.display());
    crate::testbed::make(&path, 16, &args);
    let image = std::fs::read(&path).unwrap();
    let seed = 77;
    println!("seed {seed}");
    let sim = world();
    sim.rt()
        .block_on(async {
            let still = reading(Bad::new(&image, &[])).await;
            let (paged, _pages) = cached(sim.rt(), Bad::new(&image, &[])).await;
            let (live, _cache) = super::ends::opened_on(sim.rt(), Bad::new(&image, &[])).await;
            let mut rng = Rng::new(seed);
            for (volume, what) in [(&still, "for reading"), (&paged, "with pages"), (&live, "for writing")] {
                for (name, bytes) in &files {
                    let inode = volume.resolve(format!("/{name}").as_bytes(), Follow::No).await.unwrap();
                    let file = volume.open_file(inode).await.unwrap();
                    for _ in 0..200 {
                        let (offset, len) =
                            (any_offset(&mut rng, bytes.len() as u64), rng.below(5000) as usize);
                        let mut to = vec![0xaa; len];
                        let read = file.read_at(offset, &mut to).await.unwrap();
                        let from = bytes.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
                        let expected = &bytes[from..bytes.len().min(from.saturating_add(len))];
                        assert_eq!(to[..read], *expected, "{name}, open {what}: {len} bytes at {offset}");
                        let size = bytes.len() as u64;
                        for found in
                            [file.seek_data(offset).await.unwrap(), file.seek_hole(offset).await.unwrap()]
                        {
                            assert!(
                                found.is_none_or(|found| (offset..=size).contains(&found)),
                                "{name}: {offset}"
                            );
                            assert!(offset < size || found.is_none(), "{name}: {offset}: {found:?}");
                        }
                        let end = offset.saturating_add(len as u64);
                        file.extents(offset..end).await.unwrap();
                        file.extents(offset..u64::MAX).await.unwrap();
                    }
                }
                // For other inodes only an answer is promised.
                for name in ["/", "/dir", "/dir/sub", "/fast", "/slow"] {
                    let inode = volume.resolve(name.as_bytes(), Follow::No).await.unwrap();
                    let size = inode.size();
                    let file = volume.open_file(inode).await.unwrap();
                    for _ in 0..100 {
                        let mut to = vec![0; rng.below(3000) as usize];
                        let offset = any_offset(&mut rng, size);
                        let read = file.read_at(offset, &mut to).await;
                        assert!(read.is_err() || read.unwrap() as u64 <= size.saturating_sub(offset));
                        let _ = file.seek_data(offset).await;
                        let _ = file.seek_hole(offset).await;
                        let _ = file.extents(offset..u64::MAX).await;
                    }
                }
                for number in [0, 1, 11, 128, 129, u32::MAX] {
                    let _ = volume.inode(InodeNumber(number)).await;
                }
                for group in [0, 1, 2, u32::MAX] {
                    let _ = volume.group(extant_format::Group(group)).await;
                }
            }
        })
        .unwrap();
}

/// Offsets around a file's size, within it, and as far away as possible.
fn any_offset(rng: &mut Rng, size: u64) -> u64 {
    match rng.below(8) {
        0 => size.saturating_add(rng.below(3)).saturating_sub(1),
        1 => size + rng.below(5000),
        2 => u64::MAX - rng.below(5000),
        3 => (1 << rng.below(64)) - rng.below(2),
        4 => rng.next_u64(),
        _ => rng.below(size + 1),
    }
}
