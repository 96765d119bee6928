//! The thread that reads requests.

use super::*;
use extant_block::{Bio, BioFlags, Claim, IoError, Limits};
use extant_rt::{Class, RealConfig};

/// It waits for the disk itself: with all workers busy, a file is still read that is not cached.
#[test]
fn a_request_that_waits_needs_no_other_thread() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let rt = Rt::real(RealConfig { worker_threads: Some(1), ..RealConfig::default() });
    make(&rt, &path);
    serve_on(&rt, &path, Settings::default(), |kernel, _| {
        kernel.init();
        let (entry, opened) = kernel.create(1, "file");
        let args = WriteIn { fh: opened.fh, size: 4, ..WriteIn::default() };
        kernel.ask(opcode::WRITE, entry.nodeid, &[args.as_bytes(), b"data"].concat()).unwrap();
        let args = ReleaseIn { fh: opened.fh, ..ReleaseIn::default() };
        kernel.ask(opcode::RELEASE, entry.nodeid, args.as_bytes()).unwrap();
    });
    serve_on(&rt, &path, Settings::default(), |kernel, _| {
        kernel.init();
        let (leave, left) = channel::<()>();
        let (is_busy, busy) = channel();
        let task = rt.spawn("busy", Class::Normal, async move {
            is_busy.send(()).unwrap();
            let _ = left.recv();
        });
        busy.recv().unwrap();
        let entry = kernel.ask(opcode::LOOKUP, 1, b"file\0").unwrap();
        let nodeid = EntryOut::read_from_prefix(&entry).unwrap().0.nodeid;
        let opened = kernel.ask(opcode::OPEN, nodeid, OpenIn::default().as_bytes()).unwrap();
        let fh = OpenOut::read_from_prefix(&opened).unwrap().0.fh;
        let args = ReadIn { fh, size: 4096, ..ReadIn::default() };
        assert_eq!(kernel.ask(opcode::READ, nodeid, args.as_bytes()).unwrap(), b"data");
        drop(leave);
        rt.block_on(task).unwrap().unwrap();
    });
}

/// A device that notes for each flush whether it may block the thread
/// that submits it.
#[derive(Debug)]
struct Flushes {
    below: FileDevice,
    rt: Rt,
    soon: bool,
    may_block: Mutex<Vec<bool>>,
}

impl Device for Flushes {
    fn limits(&self) -> &Limits {
        self.below.limits()
    }

    fn submit(&self, bio: Bio) {
        if bio.is_flush() || bio.flags.intersects(BioFlags::PREFLUSH | BioFlags::FUA) {
            self.may_block.lock().unwrap().push(self.rt.may_block());
        }
        self.below.submit(bio);
    }

    fn flushes_soon(&self) -> bool {
        self.soon
    }

    fn claim(&self) -> Result<Claim, IoError> {
        self.below.claim()
    }
}

#[test]
fn a_sync_without_company_blocks_the_thread_and_no_other_does() {
    [true, false].into_iter().for_each(syncs_block);
}

/// Whether a sync that is alone blocks, and no other, on a device that flushes `soon`; on another
/// none does.
fn syncs_block(soon: bool) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let rt = Rt::real(RealConfig::default());
    make(&rt, &path);
    let below = FileDevice::open(&path, FileOptions { write: true, direct: false }).unwrap();
    let device =
        Arc::new(Flushes { below: below.driven_by(&rt), rt: rt.clone(), soon, may_block: Mutex::default() });
    let flushes = device.clone();
    let flushed = move || std::mem::take(&mut *flushes.may_block.lock().unwrap());
    serve_device(&rt, device, &path, Settings::default(), |kernel, _| {
        kernel.init();
        let files = ["a", "b"].map(|name| kernel.create(1, name));
        let sync = |(entry, opened): &(EntryOut, OpenOut)| {
            (entry.nodeid, FsyncIn { fh: opened.fh, ..FsyncIn::default() })
        };
        flushed();
        let (nodeid, args) = sync(&files[0]);
        kernel.ask(opcode::FSYNC, nodeid, args.as_bytes()).unwrap();
        let alone = flushed();
        assert!(!alone.is_empty() && alone.iter().all(|may| *may == soon), "{alone:?}");

        for (entry, opened) in &files {
            let args = WriteIn { fh: opened.fh, size: 4, ..WriteIn::default() };
            kernel.ask(opcode::WRITE, entry.nodeid, &[args.as_bytes(), b"data"].concat()).unwrap();
        }
        let both = files.each_ref().map(|file| {
            let (nodeid, args) = sync(file);
            kernel.prepare(opcode::FSYNC, nodeid, args.as_bytes())
        });
        flushed();
        kernel.arrives.write_all(&[0, 0]).unwrap();
        for unique in both {
            kernel.hear(unique).unwrap();
        }
        let together = flushed();
        assert!(!together.is_empty() && !together[0], "the second waits for the first: {together:?}");
    });
}
