//! Writers on a device that is slower than they are.

use super::*;
use extant_block::{Bio, Claim, IoError, Limits, Op};
use std::sync::atomic::{AtomicBool, Ordering};

/// A disk that can be told to hold all writes back.
#[derive(Debug)]
struct Holding {
    below: FileDevice,
    holds: AtomicBool,
    held: Mutex<Vec<Bio>>,
}

impl Holding {
    fn release(&self) {
        let mut held = self.held.lock().unwrap();
        self.holds.store(false, Ordering::Relaxed);
        held.drain(..).for_each(|bio| self.below.submit(bio));
    }
}

impl Device for Holding {
    fn limits(&self) -> &Limits {
        self.below.limits()
    }

    fn submit(&self, bio: Bio) {
        let mut held = self.held.lock().unwrap();
        if bio.op == Op::Write && self.holds.load(Ordering::Relaxed) {
            return held.push(bio);
        }
        drop(held);
        self.below.submit(bio);
    }

    fn claim(&self) -> Result<Claim, IoError> {
        self.below.claim()
    }
}

fn gauge(server: &Server, name: &str) -> u64 {
    let text = server.metrics();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

#[test]
fn writers_wait_when_as_much_is_dirty_as_may_be() {
    const LIMIT: u64 = 2 << 20;
    const WRITES: u64 = 6;
    const WRITE_CACHE: u32 = 1;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let rt = Rt::real(Default::default());
    make(&rt, &path);
    let below = FileDevice::open(&path, FileOptions { write: true, direct: false }).unwrap();
    let (holds, held) = Default::default();
    let disk = Arc::new(Holding { below: below.driven_by(&rt), holds, held });
    let options =
        VolumeOptions { cache_bytes: 32 << 20, dirty_bytes: Some(LIMIT), ..VolumeOptions::default() };
    serve_volume(&rt, disk.clone(), &path, options, Settings::default(), |kernel, server| {
        kernel.init();
        let (entry, opened) = kernel.create(1, "file");
        disk.holds.store(true, Ordering::Relaxed);
        let sent = (0..WRITES).map(|n| {
            // What the kernel has kept is not slowed down before the limit.
            let (fh, size, write_flags) = (opened.fh, 1 << 20, WRITE_CACHE);
            let args = WriteIn { fh, offset: n << 20, size, write_flags, ..WriteIn::default() };
            kernel.send(opcode::WRITE, entry.nodeid, &[args.as_bytes(), &[7; 1 << 20]].concat())
        });
        let sent: Vec<u64> = sent.collect();
        let dirty = || gauge(server, "extant_dirty_bytes") + gauge(server, "extant_writeback_bytes");
        let mut replied = 0;
        while replied < WRITES && dirty() < LIMIT {
            replied += kernel.replies.try_iter().count() as u64;
            std::thread::yield_now();
        }
        replied += kernel.replies.try_iter().count() as u64;
        assert!(replied << 20 <= LIMIT, "{replied} writes have ended");
        assert_eq!((dirty(), gauge(server, "extant_dirty_limit_bytes")), (LIMIT, LIMIT));
        disk.release();
        for _ in replied..WRITES {
            let reply = kernel.replies.recv().unwrap();
            let header = ReplyHeader::read_from_prefix(&reply).unwrap().0;
            assert!(header.error == 0 && sent.contains(&header.unique), "{header:?}");
        }
    });
}
