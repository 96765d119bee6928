//! Checks our traces as read by blkparse and btt.

use extant_block::blktrace::Blktrace;
use extant_block::{Bio, BioFlags, Buf, Device, MemDevice, Op, Sector, StreamId, Trace, execute};
use extant_rt::{RealConfig, Rt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// The tool's output, or `None`, with a message, if the tool is missing.
fn tool(program: &str, args: &[&str], dir: &Path) -> Option<String> {
    let Ok(output) = Command::new(program).args(args).current_dir(dir).output() else {
        println!("skipped: {program} is not installed");
        return None;
    };
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn blkparse_and_btt_read_what_trace_writes() {
    let rt = Rt::real(RealConfig::default());
    let dir = tempfile::tempdir().unwrap();
    let trace = Blktrace::create(&dir.path().join("t"), 8, 16).unwrap();
    trace.name_stream(rt.now(), StreamId(77), "reader");
    let disk = Trace::new(Arc::new(MemDevice::new(1 << 20)), trace.clone(), &rt);
    let run = |op: Op, start: u64, bytes: usize, flags: BioFlags, stream: u64| {
        let mut bio = match op {
            Op::Read | Op::Write => Bio::new(op, Sector(start), vec![Buf::zeroed(bytes).into()]),
            _ => Bio::range(op, Sector(start), bytes as u64),
        };
        (bio.flags, bio.stream) = (flags, StreamId(stream));
        rt.block_on(execute(&disk, bio)).unwrap().1.is_ok()
    };
    assert!(run(Op::Read, 8, 4096, BioFlags::SYNC | BioFlags::META, 77));
    assert!(run(Op::Read, 16, 8192, BioFlags::RAHEAD, 77));
    assert!(run(Op::Write, 32, 512, BioFlags::PREFLUSH | BioFlags::FUA | BioFlags::SYNC, 78));
    assert!(run(Op::Discard, 64, 65536, BioFlags::empty(), 78));
    assert!(run(Op::Flush, 0, 0, BioFlags::SYNC, 78));
    assert!(!run(Op::Read, 1 << 20, 512, BioFlags::empty(), 77));
    trace.finish().unwrap();
    assert_eq!(disk.limits().capacity_bytes, 1 << 20);

    let Some(out) =
        tool("blkparse", &["-i", "t", "-f", "%D %a %d %S %n %p [%C] %e\n", "-d", "t.bin"], dir.path())
    else {
        return;
    };
    let lines = out.lines().filter(|l| l.trim_start().starts_with("8,16"));
    let lines: Vec<String> = lines.map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let expected = [
        "8,16 Q RSM 8 8 77 [reader] 0",
        "8,16 D RSM 8 8 77 [reader] 0",
        "8,16 C RSM 8 8 77 [reader] 0",
        "8,16 Q RA 16 16 77 [reader] 0",
        "8,16 D RA 16 16 77 [reader] 0",
        "8,16 C RA 16 16 77 [reader] 0",
        "8,16 Q FWFS 32 1 78 [(null)] 0",
        "8,16 D FWFS 32 1 78 [(null)] 0",
        "8,16 C FWFS 32 1 78 [(null)] 0",
        "8,16 Q D 64 128 78 [(null)] 0",
        "8,16 D D 64 128 78 [(null)] 0",
        "8,16 C D 64 128 78 [(null)] 0",
        "8,16 Q FWS 0 0 78 [(null)] 0",
        "8,16 D FWS 0 0 78 [(null)] 0",
        "8,16 C FWS 0 0 78 [(null)] 0",
        "8,16 Q R 1048576 1 77 [reader] 0",
        "8,16 D R 1048576 1 77 [reader] 0",
        "8,16 C R 1048576 1 77 [reader] 5",
    ];
    assert_eq!(lines, expected);

    if let Some(report) = tool("btt", &["-i", "t.bin"], dir.path()) {
        // Five of the six bios: btt does not count flushes.
        for (row, count) in [("Q2Q", "4"), ("D2C", "5"), ("Q2C", "5")] {
            let line = report.lines().find(|l| l.starts_with(row));
            assert_eq!(line.and_then(|l| l.split_whitespace().last()), Some(count), "{row} in\n{report}");
        }
    }
}
