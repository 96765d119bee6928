//! Names that lead to inodes that must not have names.

use super::*;
use extant_format::InodeNumber;
use futures_util::future::join3;
use std::future::poll_fn;
use std::task::Poll;

/// Runs a debugfs script on a volume and returns its output.
fn edit(image: &Path, script: &str) -> String {
    let lines = image.with_extension("script");
    std::fs::write(&lines, script).unwrap();
    run("debugfs", &["-w", "-f", lines.to_str().unwrap(), image.to_str().unwrap()])
}

fn with_names(args: &str, script: &str, work: impl AsyncFnOnce(&Bed, &Node)) {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), args);
    edit(&image, script);
    within(&image, work);
}

#[test]
fn a_name_does_not_lead_to_the_volumes_own_inodes() {
    let script = "link <8> journal\nlink <7> resize\nlink <12> orphans\n";
    with_names("-t ext4 -O orphan_file,^metadata_csum 16M", script, async |bed, root| {
        assert_eq!(bed.volume.superblock().orphan_file(), Some(InodeNumber(12)));
        let caller = Caller::root();
        for (name, number) in [(&b"journal"[..], 8), (b"resize", 7), (b"orphans", 12)] {
            let number = InodeNumber(number);
            assert!(matches!(root.lookup(&caller, name).await, Err(Error::Corrupt(_))), "{number}");
            assert!(matches!(root.unlink(&caller, name).await, Err(Error::Corrupt(_))), "{number}");
            let to = root.rename(&caller, name, root, b"new", RenameMode::Replace).await;
            assert!(matches!(to, Err(Error::Corrupt(_))), "{number}");
            let generation = bed.volume.inode(number).await.unwrap().raw.i_generation.get();
            assert!(matches!(bed.volume.node(number, generation).await, Err(Error::Stale(_))), "{number}");
            let opened = bed.volume.open_for_writing(number, Default::default()).await;
            assert!(matches!(opened, Err(Error::Corrupt(_))), "{number}");
        }
        root.lookup(&caller, b"lost+found").await.unwrap();
    });
}

#[test]
fn a_directory_that_lies_in_itself_is_not_renamed() {
    let script = "mkdir a\nmkdir b\nmkdir b/c\nlink a a/self\nlink b b/self\n";
    with_names("-t ext4 -O ^has_journal,^metadata_csum 16M", script, async |_, root| {
        let caller = &Caller::root();
        let (a, b) = (root.lookup(caller, b"a").await.unwrap(), root.lookup(caller, b"b").await.unwrap());
        a.lookup(caller, b"self").await.unwrap();
        for mode in [RenameMode::Replace, RenameMode::Exchange] {
            let name = if mode == RenameMode::Exchange { &b"c"[..] } else { b"new" };
            let source = a.rename(caller, b"self", &b, name, mode).await;
            assert!(matches!(source, Err(Error::Corrupt(_))), "{source:?}");
            root.mkdir(caller, b"d", 0o755).await.unwrap();
            let target = root.rename(caller, b"d", &b, b"self", mode).await;
            assert!(matches!(target, Err(Error::Corrupt(_))), "{target:?}");
            root.rmdir(caller, b"d").await.unwrap();
        }
        let within = a.rename(caller, b"self", &a, b"new", RenameMode::Replace).await;
        assert!(matches!(within, Err(Error::Invalid(_))), "{within:?}");
    });
}

#[test]
fn removals_that_lead_in_a_circle_do_not_wait_for_each_other() {
    let script = "mkdir a\nmkdir a/b\nlink a a/b/up\n";
    with_names("-t ext4 -O ^has_journal,^metadata_csum 16M", script, async |_, root| {
        let caller = &Caller::root();
        let a = root.lookup(caller, b"a").await.unwrap();
        let b = a.lookup(caller, b"b").await.unwrap();
        // An operation that may wait for another must not hold a lock that the other may wait for.
        let is_refused = |name: &[u8], removed: &Result<()>| match name {
            b"b" => matches!(removed, Err(Error::NotEmpty(_))),
            // The directory's `..` names another parent.
            _ => matches!(removed, Err(Error::Corrupt(_))),
        };
        for (dir, name, other) in [(&a, &b"b"[..], &b), (&b, b"up", &a)] {
            // Remove one beforehand, so that everything is in memory and only the lock has to be
            // waited for.
            let removed = dir.rmdir(caller, name).await;
            assert!(is_refused(name, &removed), "{removed:?}");
            let held = other.cell().write_lock().await;
            let mut rmdir = Box::pin(dir.rmdir(caller, name));
            let pending = poll_fn(|cx| Poll::Ready(rmdir.as_mut().poll(cx).is_pending())).await;
            assert!(pending);
            let holds = dir.cell().lock().try_write().is_none();
            assert_eq!(holds, dir.inode() < other.inode(), "directories are waited for by number alone");
            drop(held);
            let removed = rmdir.await;
            assert!(is_refused(name, &removed), "{removed:?}");
        }
        for _ in 0..100 {
            let (down, up, away) = join3(
                a.rmdir(caller, b"b"),
                b.rmdir(caller, b"up"),
                b.rename(caller, b"up", &b, b"upper", RenameMode::Replace),
            )
            .await;
            assert!(matches!(down, Err(Error::NotEmpty(_))), "{down:?}");
            assert!(matches!(up, Err(Error::Corrupt(_))), "{up:?}");
            assert!(matches!(away, Err(Error::Corrupt(_))), "{away:?}");
        }
    });
}

/// Asserts that opening for writing reports the damage.
fn is_refused(args: &str, script: &str) {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), args);
    let said = edit(&image, script);
    let rt = Rt::real(Default::default());
    let opened = rt.block_on(async {
        let cache = PageCache::new(&rt, CacheConfig::with_budget(16 << 20)).unwrap();
        let disk = cache.attach(device(&image));
        Volume::open_writable(&rt, &disk, WriteOptions::default()).await.map(drop)
    });
    assert!(matches!(opened.unwrap(), Err(Error::Corrupt(_))), "{args}, {script}: {said}");
}

#[test]
fn bitmaps_and_tables_that_share_blocks_are_refused() {
    let ext3 = "-t ext3 -b 1024 -g 1024 -N 256 4M";
    is_refused(ext3, "set_bg 1 block_bitmap 18\nset_bg 2 block_bitmap 18\n");
    is_refused(ext3, "set_bg 1 inode_bitmap 1\n");
    is_refused(ext3, "set_bg 1 inode_table 1030\nset_bg 1 block_bitmap 1031\n");
}

#[test]
fn the_orphan_list_does_not_name_the_volumes_own_inodes() {
    let args = "-t ext4 -O orphan_file,^metadata_csum 16M";
    is_refused(args, "ssv last_orphan 12\nsif <12> links_count 0\n");
}

#[test]
fn a_file_does_not_claim_blocks_of_the_log() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 -b 1024 -O ^metadata_csum 16M");
    let log = run("debugfs", &["-R", "bmap <8> 5", image.to_str().unwrap()]);
    let log = log.lines().find(|line| line.parse::<u64>().is_ok()).unwrap();
    let pointer = format!("sif f flags 0\nsif f block[0] {log}\nsif f block[1] 0\n");
    edit(&image, &format!("write /dev/null f\n{pointer}sif f blocks 2\nsif f size 1024\n"));
    within(&image, async |bed, root| {
        let caller = Caller::root();
        let number = root.lookup(&caller, b"f").await.unwrap().inode();
        let file = bed.volume.open_for_writing(number, Default::default()).await.unwrap();
        let read = file.read(0, &mut [0; 100]).await;
        assert!(matches!(read, Err(Error::Corrupt(_))), "{log}: {read:?}");
        let write = async { file.write(0, &[7; 1024]).await.and(file.sync().await) }.await;
        assert!(matches!(write, Err(Error::Corrupt(_))), "{log}: {write:?}");
    });
}

#[test]
fn a_volume_without_a_root_directory_is_refused_as_it_is() {
    if !have_tools() {
        return;
    }
    for script in ["sif / mode 0100644\n", "sif / links_count 0\n"] {
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), "-t ext4 -O ^metadata_csum 16M");
        edit(&image, script);
        let before = std::fs::read(&image).unwrap();
        let rt = Rt::real(Default::default());
        let opened = rt.block_on(async {
            let cache = PageCache::new(&rt, CacheConfig::with_budget(1 << 20)).unwrap();
            let disk = cache.attach(device(&image));
            Volume::open_writable(&rt, &disk, WriteOptions::default()).await.err()
        });
        let refused = opened.unwrap();
        assert!(matches!(refused, Some(Error::Corrupt(_))), "{script}: {refused:?}");
        assert!(std::fs::read(&image).unwrap() == before, "{script}");
    }
}
