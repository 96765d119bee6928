//! Attribute blocks shared by two inodes, as the kernel creates them.

use super::*;
use crate::alloc::Privilege;
use crate::journal::Credits;
use crate::xattr::live::{self, Release};
use extant_block::MemDevice;
use extant_format::{XattrIndex, XattrName};
use extant_sim::{Machine, Preemption, Sim};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

const BLOCK_BYTES: usize = 4096;

/// Creates a volume on which the inodes of `/a` and `/b` share an attribute block.
fn make_shared(dir: &Path) -> PathBuf {
    let image = make(dir, "-t ext4 -b 4096 -I 128 -O ^metadata_csum 16M");
    let value = dir.join("value");
    std::fs::write(&value, [b'v'; 300]).unwrap();
    let script = dir.join("script");
    let debugfs = |lines: &str| {
        std::fs::write(&script, lines).unwrap();
        run("debugfs", &["-w", "-f", script.to_str().unwrap(), image.to_str().unwrap()])
    };
    debugfs(&format!("write /dev/null a\nwrite /dev/null b\nea_set -f {} a user.shared\n", value.display()));
    let stat = debugfs("stat a\n");
    let at = stat.split("File ACL: ").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap();
    debugfs(&format!("sif b file_acl {at}\nsif b blocks 8\n"));
    let mut bytes = std::fs::read(&image).unwrap();
    let block = at.parse::<usize>().unwrap() * BLOCK_BYTES;
    // h_magic, h_refcount
    assert_eq!(bytes[block..block + 8], [0, 0, 2, 0xea, 1, 0, 0, 0]);
    bytes[block + 4] = 2;
    std::fs::write(&image, bytes).unwrap();
    check_is_silent(&image, "as made");
    image
}

fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// If the second inode left earlier, it could free the block and log that before the first inode
/// logs its edit. The commit would then write the edit home over the block's next owner.
#[test]
fn a_shared_block_is_left_by_the_next_inode_when_the_first_has_closed_its_handle() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make_shared(dir.path());
    let rt = Rt::real(Default::default());
    let caller = Caller::root();
    rt.block_on(async {
        let bed = Bed::open(&rt, device(&image)).await;
        let writer = bed.writer();
        let root = bed.volume.root_node().await.unwrap();
        let (a, b) = (root.lookup(&caller, b"a").await.unwrap(), root.lookup(&caller, b"b").await.unwrap());
        let mut first = Release::prepare(writer, a.cell()).await.unwrap().unwrap();
        {
            let mut handle = writer.journal.try_start(Credits(first.credits())).unwrap().unwrap();
            first.apply(writer, &mut handle, a.cell());
            let mut second = pin!(Release::prepare(writer, b.cell()));
            assert!(poll_once(second.as_mut()).is_pending(), "the first has not closed its handle");
        }
        drop(first);
        let mut second = Release::prepare(writer, b.cell()).await.unwrap().unwrap();
        {
            let mut handle = writer.journal.try_start(Credits(second.credits())).unwrap().unwrap();
            second.apply(writer, &mut handle, b.cell());
        }
        drop(second);
        drop((root, a, b));
        bed.close().await;
    })
    .unwrap();
    check_is_silent(&image, "after both have left the block");
}

/// Deleting a file, which leaves its attribute block, makes room for a new block.
#[test]
fn an_attribute_of_a_full_volume_waits_for_deletions_without_their_lock() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make_shared(dir.path());
    // Run it in a simulation, which detects a deadlock.
    let sim = Sim::new(Machine::free(1, Preemption::None), 1);
    let disk = Arc::new(MemDevice::from_bytes(std::fs::read(&image).unwrap()));
    let caller = Caller::root();
    let ended = sim.rt().block_on(async {
        let bed = Bed::open(sim.rt(), disk.clone()).await;
        let writer = bed.writer();
        let root = bed.volume.root_node().await.unwrap();
        let doomed = root.create(&caller, b"doomed", 0o644).await.unwrap();
        doomed.set_xattr(&caller, b"user.own", &[b'o'; 300], SetMode::Any).await.unwrap();
        let a = root.lookup(&caller, b"a").await.unwrap();
        root.unlink(&caller, b"doomed").await.unwrap();
        let hog = writer.alloc.reserve(writer.alloc.statfs().free, 0, Privilege::Reserved).unwrap();
        drop(doomed);
        let name = XattrName { index: XattrIndex::USER, suffix: b"shared" };
        let change = live::Change { name, value: Some(b"alone"), mode: SetMode::Any };
        let prepared = live::prepare(writer, a.cell(), &[change], Privilege::Reserved).await.unwrap();
        drop((prepared, hog));
        a.set_xattr(&caller, b"user.shared", b"alone", SetMode::Any).await.unwrap();
        drop((root, a));
        bed.close().await;
    });
    ended.expect("it does not wait for itself");
    std::fs::write(&image, disk.to_bytes()).unwrap();
    check_is_silent(&image, "after the block is shared no more");
}
