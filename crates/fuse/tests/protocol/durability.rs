//! What is left if the power fails right after a reply.

use super::*;
use extant_block::{MemDevice, Record};
use extant_format::{FileKind, Inode};
use extant_fs::{OpenOptions, Synchronous, Volume};
use extant_rt::Nanos;
use std::collections::BTreeMap;

const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const NODUMP_AND_EXTENTS: u64 = 0x8_0040;

/// What is on a disk: mode, links, size, contents and attributes of each name.
type Tree = BTreeMap<String, String>;

async fn look(volume: &Volume, dir: &Inode, at: &str, tree: &mut Tree) {
    for item in volume.list(dir).await.unwrap() {
        let name = format!("{at}{}", String::from_utf8(item.name).unwrap());
        let inode = volume.inode(item.inode).await.unwrap();
        let mut seen = format!("{:o} {} {}", inode.mode(), inode.links(), inode.size());
        match inode.kind().unwrap() {
            FileKind::Regular => {
                let (mut bytes, size) = ([0; 16], inode.size());
                let file = volume.open_file(inode.clone()).await.unwrap();
                let read = file.read_at(0, &mut bytes).await.unwrap();
                let read = String::from_utf8_lossy(&bytes[..read]).into_owned();
                assert!(size < 16 || read.len() == 16);
                seen = format!("{seen} {read:?}");
            }
            FileKind::Directory if name != "lost+found" => {
                Box::pin(look(volume, &inode, &format!("{name}/"), tree)).await;
            }
            _ => {}
        }
        for attribute in volume.xattrs(&inode).await.unwrap() {
            seen = format!("{seen} {}", String::from_utf8_lossy(&attribute.name));
        }
        if inode.flags().contains(extant_format::InodeFlags::NODUMP) {
            seen = format!("{seen} nodump");
        }
        tree.insert(name, seen);
    }
}

fn tree_on(rt: &Rt, disk: Vec<u8>) -> Tree {
    let mut tree = Tree::new();
    rt.block_on(async {
        let volume = Volume::open(Arc::new(MemDevice::from_bytes(disk)), OpenOptions::default());
        let volume = volume.await.unwrap();
        look(&volume, &volume.root().await.unwrap(), "", &mut tree).await;
    })
    .unwrap();
    tree.remove("lost+found");
    tree
}

/// A kernel. After each reply it notes the position in the log of disk requests, and what must be
/// left if the power fails there.
struct Steps<'a> {
    kernel: &'a mut Kernel,
    record: &'a Record,
    expected: Tree,
    notes: Vec<(u32, usize, Tree)>,
}

impl Steps<'_> {
    /// Sends a request. `changes` says what each name is afterwards; an empty text means that the
    /// name is gone.
    fn ask(&mut self, code: u32, nodeid: u64, body: &[&[u8]], changes: &[(&str, &str)]) -> Vec<u8> {
        let reply = self.kernel.ask(code, nodeid, &body.concat()).unwrap_or_else(|errno| {
            panic!("request {code}: error {errno}");
        });
        self.note(code, changes);
        reply
    }

    fn note(&mut self, code: u32, changes: &[(&str, &str)]) {
        for &(name, seen) in changes {
            match seen {
                "" => drop(self.expected.remove(name)),
                seen => drop(self.expected.insert(name.to_owned(), seen.to_owned())),
            }
        }
        self.notes.push((code, self.record.position(), self.expected.clone()));
    }
}

/// Requests of each kind that changes something. The first part changes names.
fn change_all(steps: &mut Steps<'_>, names_only: bool) {
    let mode = MkdirIn { mode: 0o755, umask: 0 };
    let entry = steps.ask(opcode::MKDIR, 1, &[mode.as_bytes(), b"d\0"], &[("d", "40755 2 1024")]);
    let d = EntryOut::read_from_prefix(&entry).unwrap().0.nodeid;
    let (f, opened) = steps.kernel.create(d, "f");
    let (f, fh) = (f.nodeid, opened.fh);
    steps.note(opcode::CREATE, &[("d/f", "100644 1 0 \"\"")]);
    let pipe = MknodIn { mode: 0o10_600, ..MknodIn::default() };
    steps.ask(opcode::MKNOD, d, &[pipe.as_bytes(), b"p\0"], &[("d/p", "10600 1 0")]);
    steps.ask(opcode::SYMLINK, 1, &[b"s\0d/f\0"], &[("s", "120777 1 3")]);
    let link = LinkIn { oldnodeid: f };
    let twice = "100644 2 0 \"\"";
    steps.ask(opcode::LINK, 1, &[link.as_bytes(), b"l\0"], &[("l", twice), ("d/f", twice)]);
    let rename = RenameIn { newdir: d };
    steps.ask(opcode::RENAME, 1, &[rename.as_bytes(), b"l\0m\0"], &[("l", ""), ("d/m", twice)]);
    let swap = Rename2In { newdir: 1, flags: 2, padding: 0 };
    let swapped = [("s", "10600 1 0"), ("d/p", "120777 1 3")];
    steps.ask(opcode::RENAME2, d, &[swap.as_bytes(), b"p\0s\0"], &swapped);
    steps.ask(opcode::UNLINK, d, &[b"m\0"], &[("d/m", ""), ("d/f", "100644 1 0 \"\"")]);
    let entry = steps.ask(
        opcode::MKDIR,
        d,
        &[mode.as_bytes(), b"e\0"],
        &[("d", "40755 3 1024"), ("d/e", "40755 2 1024")],
    );
    let e = EntryOut::read_from_prefix(&entry).unwrap().0.nodeid;
    steps.ask(opcode::RMDIR, d, &[b"e\0"], &[("d", "40755 2 1024"), ("d/e", "")]);
    steps.kernel.send(opcode::FORGET, e, ForgetIn { nlookup: 1 }.as_bytes());
    if names_only {
        return;
    }
    let write = WriteIn { fh, size: 4, ..WriteIn::default() };
    steps.ask(opcode::WRITE, f, &[write.as_bytes(), b"text"], &[("d/f", "100644 1 4 \"text\"")]);
    // A page of a shared mapping.
    let write = WriteIn { fh, size: 2, write_flags: 1, ..WriteIn::default() };
    steps.ask(opcode::WRITE, f, &[write.as_bytes(), b"ne"], &[("d/f", "100644 1 4 \"next\"")]);
    let size = SetattrIn { valid: fattr::SIZE, size: 3, ..SetattrIn::default() };
    steps.ask(opcode::SETATTR, f, &[size.as_bytes()], &[("d/f", "100644 1 3 \"nex\"")]);
    let mode = SetattrIn { valid: fattr::MODE, mode: 0o600, ..SetattrIn::default() };
    steps.ask(opcode::SETATTR, f, &[mode.as_bytes()], &[("d/f", "100600 1 3 \"nex\"")]);
    let set = SetxattrIn { size: 1, ..SetxattrIn::default() };
    let listed = [("d/f", "100600 1 3 \"nex\" user.x")];
    steps.ask(opcode::SETXATTR, f, &[set.as_bytes(), b"user.x\0y"], &listed);
    steps.ask(opcode::REMOVEXATTR, f, &[b"user.x\0"], &[("d/f", "100600 1 3 \"nex\"")]);
    let more = FallocateIn { fh, length: 5, ..FallocateIn::default() };
    steps.ask(opcode::FALLOCATE, f, &[more.as_bytes()], &[("d/f", "100600 1 5 \"nex\\0\\0\"")]);
    let (to, opened) = steps.kernel.create(1, "copy");
    steps.note(opcode::CREATE, &[("copy", "100644 1 0 \"\"")]);
    let copy =
        CopyFileRangeIn { fh_in: fh, nodeid_out: to.nodeid, fh_out: opened.fh, len: 3, ..Default::default() };
    let copied = [("copy", "100644 1 3 \"nex\"")];
    steps.ask(opcode::COPY_FILE_RANGE, f, &[copy.as_bytes()], &copied);
    let flags = IoctlIn { cmd: FS_IOC_SETFLAGS, in_size: 8, ..IoctlIn::default() };
    let marked = [("copy", "100644 1 3 \"nex\" nodump")];
    steps.ask(opcode::IOCTL, to.nodeid, &[flags.as_bytes(), NODUMP_AND_EXTENTS.as_bytes()], &marked);
    // With O_TRUNC.
    let open = OpenIn { flags: 0o1001, open_flags: 0 };
    steps.ask(opcode::OPEN, f, &[open.as_bytes()], &[("d/f", "100600 1 0 \"\"")]);
}

/// Makes a volume; returns its bytes, and its device, which records what is written from then on.
fn recorded(rt: &Rt, path: &Path) -> (Vec<u8>, Arc<Record>) {
    make(rt, path);
    let base = std::fs::read(path).unwrap();
    let below = FileDevice::open(path, FileOptions { write: true, direct: false }).unwrap();
    (base, Arc::new(Record::new(Arc::new(below.driven_by(rt)))))
}

#[test]
fn a_reply_of_a_synchronous_volume_comes_when_the_change_is_durable() {
    for synchronous in [Synchronous::All, Synchronous::Names] {
        let dir = tempfile::tempdir().unwrap();
        let (path, rt) = (dir.path().join("image"), Rt::real(Default::default()));
        let (base, record) = recorded(&rt, &path);
        let mut notes = Vec::new();
        let commit_interval = Nanos::from_secs(900);
        let options = VolumeOptions { synchronous, commit_interval, ..VolumeOptions::default() };
        serve_volume(&rt, record.clone(), &path, options, Settings::default(), |kernel, _| {
            kernel.init();
            let mut steps = Steps { kernel, record: &record, expected: Tree::new(), notes: Vec::new() };
            change_all(&mut steps, synchronous == Synchronous::Names);
            notes = steps.notes;
        });
        let log = record.log();
        for (nth, (code, events, expected)) in notes.into_iter().enumerate() {
            let found = tree_on(&rt, log.disk_after(&base, events, false));
            assert_eq!(found, expected, "{synchronous:?}: request {nth}, of kind {code}");
        }
    }
}

/// The kernel sends no FSYNC after an asynchronous write with O_DIRECT.
#[test]
fn a_direct_write_to_a_synchronous_handle_is_durable_when_it_is_answered() {
    const O_DIRECT: u32 = rustix::fs::OFlags::DIRECT.bits();
    const O_DSYNC: u32 = rustix::fs::OFlags::DSYNC.bits();
    let dir = tempfile::tempdir().unwrap();
    let (path, rt) = (dir.path().join("image"), Rt::real(Default::default()));
    let (base, record) = recorded(&rt, &path);
    let mut events = 0;
    serve_device(&rt, record.clone(), &path, Settings::default(), |kernel, _| {
        kernel.init();
        let (entry, opened) = kernel.create(1, "f");
        let args = WriteIn { fh: opened.fh, size: 512, flags: O_DIRECT | O_DSYNC, ..WriteIn::default() };
        kernel.ask(opcode::WRITE, entry.nodeid, &[args.as_bytes(), &[b'x'; 512]].concat()).unwrap();
        events = record.position();
    });
    let found = tree_on(&rt, record.log().disk_after(&base, events, false));
    assert_eq!(found, Tree::from([("f".into(), format!("100644 1 512 {:?}", "x".repeat(16)))]));
}
