//! A server without a kernel: requests and replies as bytes.

mod durability;
mod lane;
mod sandbox;
mod throttling;

use extant_block::{Device, FileDevice, FileOptions};
use extant_fuse::wire::*;
use extant_fuse::{Monitor, OpenVolume, Received, Server, Settings, Tie, Transport, VolumeOptions};
use extant_rt::Rt;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use zerocopy::{FromBytes, IntoBytes};

/// The server's end of a connection.
struct Pipe {
    requests: Mutex<Receiver<Vec<u8>>>,
    replies: Mutex<Sender<Vec<u8>>>,
    /// Has a byte for each request, and ends with them.
    arrived: UnixStream,
}

impl Transport for Pipe {
    fn read(&self, buffer: &mut [u8], waits: bool) -> std::io::Result<Received> {
        self.arrived.set_nonblocking(!waits)?;
        match (&self.arrived).read(&mut [0]) {
            Ok(0) => return Ok(Received::End),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(Received::Nothing),
            read => drop(read?),
        }
        let request = self.requests.lock().unwrap().recv().unwrap();
        buffer[..request.len()].copy_from_slice(&request);
        Ok(Received::Request(request.len()))
    }

    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.arrived.as_fd()
    }

    fn write(&self, parts: &[&[u8]]) -> std::io::Result<()> {
        // The test may have ended already.
        let _ = self.replies.lock().unwrap().send(parts.concat());
        Ok(())
    }
}

/// Plays the kernel.
struct Kernel {
    requests: Sender<Vec<u8>>,
    replies: Receiver<Vec<u8>>,
    arrives: UnixStream,
    unique: u64,
    uid: u32,
}

impl Kernel {
    fn send(&mut self, opcode: u32, nodeid: u64, body: &[u8]) -> u64 {
        let unique = self.prepare(opcode, nodeid, body);
        self.arrives.write_all(&[0]).unwrap();
        unique
    }

    /// Sends a request that the server sees once a byte for it arrives.
    fn prepare(&mut self, opcode: u32, nodeid: u64, body: &[u8]) -> u64 {
        self.unique += 1;
        let len = (size_of::<RequestHeader>() + body.len()) as u32;
        let (unique, uid) = (self.unique, self.uid);
        let header = RequestHeader { len, opcode, unique, nodeid, uid, ..RequestHeader::default() };
        self.requests.send([header.as_bytes(), body].concat()).unwrap();
        self.unique
    }

    /// Sends a request and returns its reply, or its error.
    fn ask(&mut self, opcode: u32, nodeid: u64, body: &[u8]) -> Result<Vec<u8>, i32> {
        let unique = self.send(opcode, nodeid, body);
        self.hear(unique)
    }

    /// Waits for a reply; notifications may arrive before it.
    fn hear(&mut self, unique: u64) -> Result<Vec<u8>, i32> {
        loop {
            let reply = self.replies.recv().unwrap();
            let (header, rest) = ReplyHeader::read_from_prefix(&reply).unwrap();
            assert_eq!(header.len as usize, reply.len());
            if header.unique == unique {
                return if header.error == 0 { Ok(rest.to_vec()) } else { Err(-header.error) };
            }
            assert_eq!(header.unique, 0, "a notification");
        }
    }

    fn init(&mut self) -> InitOut {
        let args = InitIn { major: 7, minor: 45, max_readahead: 131_072, flags: u32::MAX };
        let body = [args.as_bytes(), &[0xff; 4], &[0; 44]].concat();
        InitOut::read_from_prefix(&self.ask(opcode::INIT, 0, &body).unwrap()).unwrap().0
    }

    fn create(&mut self, dir: u64, name: &str) -> (EntryOut, OpenOut) {
        let args = CreateIn { flags: 0o102, mode: 0o100_644, ..CreateIn::default() };
        let body = [args.as_bytes(), name.as_bytes(), b"\0"].concat();
        let reply = self.ask(opcode::CREATE, dir, &body).unwrap();
        let (entry, rest) = EntryOut::read_from_prefix(&reply).unwrap();
        (entry, OpenOut::read_from_prefix(rest).unwrap().0)
    }

    /// Lists a directory with replies of up to `size` bytes.
    fn list(&mut self, dir: u64, size: u32, plus: bool) -> Vec<(String, u64)> {
        let opened = self.ask(opcode::OPENDIR, dir, OpenIn::default().as_bytes()).unwrap();
        let fh = OpenOut::read_from_prefix(&opened).unwrap().0.fh;
        let (mut names, mut offset) = (Vec::new(), 0);
        loop {
            let args = ReadIn { fh, offset, size, ..ReadIn::default() };
            let code = if plus { opcode::READDIRPLUS } else { opcode::READDIR };
            let reply = self.ask(code, dir, args.as_bytes()).unwrap();
            assert!(reply.len() <= size as usize);
            let mut rest = &reply[..];
            if rest.is_empty() {
                break;
            }
            while !rest.is_empty() {
                let mut nodeid = 0;
                if plus {
                    let (entry, after) = EntryOut::read_from_prefix(rest).unwrap();
                    (nodeid, rest) = (entry.nodeid, after);
                }
                let (dirent, after) = Dirent::read_from_prefix(rest).unwrap();
                let name = &after[..dirent.namelen as usize];
                names.push((String::from_utf8(name.to_vec()).unwrap(), nodeid));
                offset = dirent.off;
                rest = &after[name.len().next_multiple_of(8)..];
            }
        }
        let args = ReleaseIn { fh, ..ReleaseIn::default() };
        self.ask(opcode::RELEASEDIR, dir, args.as_bytes()).unwrap();
        names
    }
}

/// Serves a new volume, calls `play`, and closes the volume.
fn serve(path: &Path, play: impl FnOnce(&mut Kernel, &Server)) {
    serve_with(path, Settings::default(), play);
}

fn serve_with(path: &Path, settings: Settings, play: impl FnOnce(&mut Kernel, &Server)) {
    let rt = Rt::real(Default::default());
    make(&rt, path);
    serve_on(&rt, path, settings, play);
}

fn make(rt: &Rt, path: &Path) {
    let options =
        extant_image::VolumeOptions { size: extant_image::SizePolicy::Fixed(16 << 20), ..Default::default() };
    let created = extant_image::Timestamp { seconds: 1_700_000_000, nanos: 0 };
    extant_image::mkfs(path, &options, created, rt, Arc::new(|_, _| {})).unwrap();
}

/// Serves a volume that is there.
fn serve_on(rt: &Rt, path: &Path, settings: Settings, play: impl FnOnce(&mut Kernel, &Server)) {
    let device = FileDevice::open(path, FileOptions { write: true, direct: false }).unwrap();
    serve_device(rt, Arc::new(device.driven_by(rt)), path, settings, play);
}

/// Serves the volume on a device, whose file is at `path`.
fn serve_device(
    rt: &Rt,
    device: Arc<dyn Device>,
    path: &Path,
    settings: Settings,
    play: impl FnOnce(&mut Kernel, &Server),
) {
    let options = VolumeOptions { cache_bytes: 16 << 20, ..VolumeOptions::default() };
    serve_volume(rt, device, path, options, settings, play);
}

fn serve_volume(
    rt: &Rt,
    device: Arc<dyn Device>,
    path: &Path,
    options: VolumeOptions,
    settings: Settings,
    play: impl FnOnce(&mut Kernel, &Server),
) {
    let volume = rt.block_on(OpenVolume::open(rt, device, options)).unwrap().unwrap();
    let (requests, theirs) = channel();
    let (their_replies, replies) = channel();
    let (arrives, arrived) = UnixStream::pair().unwrap();
    let pipe = Pipe { requests: Mutex::new(theirs), replies: Mutex::new(their_replies), arrived };
    let server = Server::new(rt, volume, Arc::new(pipe), settings, || {});
    let serving = server.clone();
    let served = rt.spawn_blocking("fuse", move || serving.serve());
    let mut kernel = Kernel { requests, replies, arrives, unique: 0, uid: 0 };
    play(&mut kernel, &server);
    drop(kernel);
    rt.block_on(served).unwrap().unwrap().unwrap();
    rt.block_on(server.close()).unwrap().unwrap();
    if extant_testbed::have(&["e2fsck"]) {
        let checked = extant_testbed::command("e2fsck").arg("-fn").arg(path).output().unwrap();
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    }
}

#[test]
fn lookups_are_counted_and_listings_end_in_any_size_of_reply() {
    let dir = tempfile::tempdir().unwrap();
    serve(&dir.path().join("image"), |kernel, server| {
        let agreed = kernel.init();
        assert_eq!((agreed.major, agreed.minor, agreed.max_write), (7, 45, 1 << 20));
        assert_eq!(agreed.flags & init::POSIX_ACL as u32, 0, "the server checks");
        let mut expected = BTreeSet::from([".".to_owned(), "..".to_owned(), "lost+found".to_owned()]);
        let mut made = Vec::new();
        for n in 0..300 {
            let name = format!("file-{n}");
            let (entry, opened) = kernel.create(1, &name);
            let args = ReleaseIn { fh: opened.fh, ..ReleaseIn::default() };
            kernel.ask(opcode::RELEASE, entry.nodeid, args.as_bytes()).unwrap();
            made.push(entry.nodeid);
            expected.insert(name);
        }
        assert_eq!(server.known_inodes(), 301);
        for size in [300, 4096, 100_000] {
            for plus in [false, true] {
                let names = kernel.list(1, size, plus);
                assert_eq!(names.len(), expected.len(), "{size} {plus}");
                assert_eq!(names.iter().map(|(name, _)| name.clone()).collect::<BTreeSet<_>>(), expected);
            }
        }
        // Each was looked up once when it was created, and three times by listings.
        for nodeid in &made {
            kernel.send(opcode::FORGET, *nodeid, ForgetIn { nlookup: 4 }.as_bytes());
        }
        // `lost+found` was looked up three times.
        let one = ForgetOne { nodeid: 11, nlookup: 3 };
        let batch = BatchForgetIn { count: 1, dummy: 0 };
        kernel.send(opcode::BATCH_FORGET, 0, &[batch.as_bytes(), one.as_bytes()].concat());
        assert_eq!(kernel.ask(opcode::GETATTR, made[0], GetattrIn::default().as_bytes()), Err(116));
        assert_eq!(server.known_inodes(), 1);
        assert_eq!(kernel.ask(4711, 1, b""), Err(38));
        assert_eq!(kernel.ask(opcode::LOOKUP, 1, b"no end"), Err(22));
        let missing = kernel.ask(opcode::LOOKUP, 1, b"missing\0").unwrap();
        assert_eq!(EntryOut::read_from_prefix(&missing).unwrap().0.nodeid, 0);
    });
}

/// A program can hold a file without opening it: as its working directory, or with O_PATH.
#[test]
fn what_has_lost_its_names_exists_until_it_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    serve(&dir.path().join("image"), |kernel, server| {
        kernel.init();
        let mut made = Vec::new();
        for name in ["removed", "replaced", "new"] {
            let (entry, opened) = kernel.create(1, name);
            let args = ReleaseIn { fh: opened.fh, ..ReleaseIn::default() };
            kernel.ask(opcode::RELEASE, entry.nodeid, args.as_bytes()).unwrap();
            made.push(entry.nodeid);
        }
        let body = [MkdirIn { mode: 0o755, umask: 0 }.as_bytes(), b"directory\0"].concat();
        let entry = kernel.ask(opcode::MKDIR, 1, &body).unwrap();
        made.push(EntryOut::read_from_prefix(&entry).unwrap().0.nodeid);
        let names = [&1_u64.to_ne_bytes()[..], b"new\0replaced\0"].concat();
        kernel.ask(opcode::RENAME, 1, &names).unwrap();
        kernel.ask(opcode::UNLINK, 1, b"removed\0").unwrap();
        kernel.ask(opcode::RMDIR, 1, b"directory\0").unwrap();
        assert_eq!(kernel.list(1, 4096, false).len(), 4);
        let links = |kernel: &mut Kernel, nodeid: u64| {
            let reply = kernel.ask(opcode::GETATTR, nodeid, GetattrIn::default().as_bytes())?;
            Ok::<_, i32>(AttrOut::read_from_prefix(&reply).unwrap().0.attr.nlink)
        };
        let [removed, replaced, new, directory] = made[..] else { panic!("{made:?}") };
        for (nodeid, count) in [(removed, 0), (replaced, 0), (new, 1), (directory, 0)] {
            assert_eq!(links(kernel, nodeid), Ok(count), "{nodeid}");
        }
        for nodeid in [removed, replaced, directory] {
            kernel.send(opcode::FORGET, nodeid, ForgetIn { nlookup: 1 }.as_bytes());
            assert_eq!(links(kernel, nodeid), Err(116));
        }
        assert_eq!(server.known_inodes(), 2);
    });
}

/// Other requests are served while the monitor, which may be waiting for the server, does not
/// answer.
#[test]
fn others_are_served_while_the_groups_of_a_caller_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, mut monitor) = Tie::pair().unwrap();
    let settings = Settings { monitor: Some(Arc::new(Monitor::new(ours))), ..Settings::default() };
    serve_with(&dir.path().join("image"), settings, |kernel, _| {
        kernel.init();
        kernel.uid = 1000;
        // The directory belongs to root, so a group might grant access.
        let body = [MkdirIn { mode: 0o755, umask: 0 }.as_bytes(), b"directory\0"].concat();
        let waits = kernel.send(opcode::MKDIR, 1, &body);
        let mut asked = [0; 5];
        monitor.read_exact(&mut asked).unwrap();
        assert_eq!(asked[0], b'g');
        kernel.ask(opcode::GETATTR, 1, GetattrIn::default().as_bytes()).unwrap();
        // The monitor answers that there are no groups.
        monitor.write_all(&0_u32.to_le_bytes()).unwrap();
        assert_eq!(kernel.hear(waits), Err(13));
    });
}

/// Requests made of random bytes, for inodes and handles that exist: each gets one reply, and the
/// volume stays sound.
#[test]
fn no_request_stops_the_server() {
    let seed: u64 = std::env::var("EXTANT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("seed {seed}");
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let without_reply = [opcode::FORGET, opcode::BATCH_FORGET, opcode::INTERRUPT, opcode::NOTIFY_REPLY];
    let dir = tempfile::tempdir().unwrap();
    serve(&dir.path().join("image"), |kernel, _| {
        kernel.init();
        let nodes: Vec<u64> =
            (0..8).map(|n| kernel.create(1, &format!("f{n}")).0.nodeid).chain([1, 1]).collect();
        for _ in 0..3000 {
            let code = (random() % 56) as u32;
            if without_reply.contains(&code) || code == opcode::INIT {
                continue;
            }
            let mut body: Vec<u8> = Vec::new();
            for _ in 0..random() % 12 {
                match random() % 4 {
                    0 => body.extend_from_slice(&random().to_ne_bytes()),
                    1 => body.extend_from_slice(&(random() % 12).to_ne_bytes()),
                    2 => body.extend_from_slice(b"f1\0f2\0user.x\0"),
                    _ => body.extend_from_slice(&(random() % 100_000).to_ne_bytes()),
                }
            }
            let nodeid = nodes[(random() % nodes.len() as u64) as usize];
            let _ = kernel.ask(code, nodeid, &body);
        }
    });
}
