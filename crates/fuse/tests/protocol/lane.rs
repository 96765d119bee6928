//! The thread that reads requests.

use super::*;
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
