//! Volumes that Linux left mounted, so that their journals hold what was synced. We must read the
//! same as Linux does when it mounts the same bytes, before and after `recover`. Needs root and
//! loop devices; otherwise skipped with a message.

use extant_block::{FileDevice, FileOptions};
use extant_format::{FileKind, Incompat, Inode};
use extant_fs::{Chunk, OpenOptions, Volume, recover};
use extant_rt::Rt;
use extant_testbed::{Mount, can_mount};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

fn sh(script: &str) -> Result<String, String> {
    let out = Command::new("sh").args(["-ec", script]).output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    if out.status.success() { Ok(text) } else { Err(format!("{script}: {text}")) }
}

/// The state of a path: mode, owner, links, size, time, and contents or target.
type Entry = (u32, u32, u16, u64, i64, Vec<u8>);

fn theirs(dir: &Path, root: &Path, into: &mut BTreeMap<PathBuf, Entry>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let meta = path.symlink_metadata().unwrap();
        let contents = match meta.file_type() {
            t if t.is_file() => fs::read(&path).unwrap(),
            t if t.is_symlink() => fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes(),
            _ => Vec::new(),
        };
        let size = if meta.is_dir() { 0 } else { meta.size() };
        let entry = (meta.mode(), meta.uid(), meta.nlink() as u16, size, meta.mtime(), contents);
        into.insert(path.strip_prefix(root).unwrap().to_path_buf(), entry);
        if meta.is_dir() {
            theirs(&path, root, into);
        }
    }
}

async fn contents(volume: &Volume, inode: &Inode) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut stream = volume.stream(inode.clone()).await.unwrap();
    while let Some(chunk) = stream.next().await.unwrap() {
        match chunk {
            Chunk::Data { bytes: data, .. } => bytes.extend_from_slice(&data),
            Chunk::Hole { bytes: len, .. } => bytes.resize(bytes.len() + len as usize, 0),
        }
    }
    bytes
}

async fn ours(volume: &Volume) -> BTreeMap<PathBuf, Entry> {
    let mut all = BTreeMap::new();
    let mut todo = vec![(PathBuf::new(), volume.root().await.unwrap())];
    while let Some((path, dir)) = todo.pop() {
        for item in volume.list(&dir).await.unwrap() {
            let path = path.join(std::str::from_utf8(&item.name).unwrap());
            let inode = volume.inode(item.inode).await.unwrap();
            assert_eq!(volume.lookup(&dir, &item.name).await.unwrap(), Some(item.inode), "{path:?}");
            let (size, bytes) = match inode.kind() {
                Some(FileKind::Regular) => (inode.size(), contents(volume, &inode).await),
                Some(FileKind::Symlink) => (inode.size(), volume.read_link(&inode).await.unwrap()),
                Some(FileKind::Directory) => (0, Vec::new()),
                _ => (inode.size(), Vec::new()),
            };
            let mtime = inode.modified().seconds;
            all.insert(path.clone(), (inode.mode().into(), inode.uid(), inode.links(), size, mtime, bytes));
            if inode.kind() == Some(FileKind::Directory) {
                todo.push((path, inode));
            }
        }
    }
    all
}

fn open(path: &Path, write: bool) -> Arc<FileDevice> {
    Arc::new(FileDevice::open(path, FileOptions { write, ..FileOptions::default() }).unwrap())
}

const WORK: &str = "
mkdir -p many deep/er/still; i=0
while [ $i -lt 400 ]; do echo $i > many/a-rather-long-name-for-a-small-file-$i; i=$((i+1)); done
dd if=/dev/urandom of=big bs=1k count=3000 status=none; ln -s ../big deep/link; ln big deep/hard
sync; i=0; while [ $i -lt 400 ]; do rm many/a-rather-long-name-for-a-small-file-$i; i=$((i+2)); done
rm -r deep/er; mkdir deep/again; echo more >> big; chown 1234 big; truncate -s 100k big; cp /bin/sh deep/again/sh; sync
";

#[test]
fn reads_and_recovers_what_linux_left_behind() {
    if !can_mount() {
        return;
    }
    let cases = [
        ("-t ext4 -b 1024 -J size=1", "data=ordered"),
        ("-t ext4 -b 4096", "data=ordered"),
        ("-t ext4 -b 1024 -O ^metadata_csum,^64bit", "journal_async_commit,data=writeback"),
        ("-t ext4 -b 1024 -O ^metadata_csum,64bit", "journal_checksum"),
        ("-t ext3 -b 1024", "data=journal"),
        ("-t ext4 -b 2048 -O inline_data,large_dir", "data=journal"),
    ];
    for (mke2fs, mount) in cases {
        let dir = tempfile::tempdir().unwrap();
        let (image, crashed) = (dir.path().join("image"), dir.path().join("crashed"));
        sh(&format!("mke2fs -q {mke2fs} {} 64M", image.display())).expect("mke2fs of e2fsprogs is installed");
        let mounted = Mount::new(&image, &dir.path().join("mnt"), mount);
        sh(&format!("cd {}; {WORK}", mounted.path().display())).unwrap();
        fs::copy(&image, &crashed).unwrap();
        drop(mounted);

        let by_linux = dir.path().join("by_linux");
        fs::copy(&crashed, &by_linux).unwrap();
        let mounted = Mount::new(&by_linux, &dir.path().join("mnt"), "noatime");
        let mut expected = BTreeMap::new();
        theirs(mounted.path(), mounted.path(), &mut expected);
        drop(mounted);

        let rt = Rt::real(Default::default());
        let what = format!("mke2fs {mke2fs}, mount -o {mount}");
        let (raw, seen) = rt
            .block_on(async {
                let volume = Volume::open(open(&crashed, false), OpenOptions::default()).await.unwrap();
                let ignore = OpenOptions { ignore_journal: true, ..OpenOptions::default() };
                let raw = Volume::open(open(&crashed, false), ignore).await.unwrap();
                (raw.superblock().clone(), ours(&volume).await)
            })
            .unwrap();
        assert!(raw.incompat().contains(Incompat::RECOVER), "{what}: the journal is dirty");
        assert_eq!(seen.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{what}");
        for (path, entry) in &expected {
            assert!(seen[path] == *entry, "{what}: {path:?}: {:?} here, {:?} there", seen[path].2, entry.2);
        }

        let recovery =
            rt.block_on(recover(&rt, open(&crashed, true), OpenOptions::default())).unwrap().unwrap();
        assert!(recovery.blocks > 0, "{what}: {recovery:?}");
        sh(&format!("e2fsck -fn {}", crashed.display())).expect(&what);
        let again = rt
            .block_on(async {
                ours(&Volume::open(open(&crashed, false), OpenOptions::default()).await.unwrap()).await
            })
            .unwrap();
        assert!(again == seen, "{what}: the view in memory and the replay agree");
    }
}
