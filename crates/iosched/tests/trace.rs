//! Checks a queue's trace as read by blkparse and btt.

use extant_block::blktrace::Blktrace;
use extant_block::{Bio, BioFlags, Buf, Device, FileDevice, FileOptions, MemDevice, Op, Sector, execute};
use extant_iosched::elevator::Deadline;
use extant_iosched::{Queue, QueueConfig};
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
fn btt_follows_a_request_through_the_queue() {
    let rt = Rt::real(RealConfig::default());
    let dir = tempfile::tempdir().unwrap();
    let trace = Blktrace::create(&dir.path().join("q"), 8, 32).unwrap();
    let config = QueueConfig { blktrace: Some(trace.clone()), number: (8, 32), ..QueueConfig::default() };
    let disk = Arc::new(MemDevice::new(1 << 20));
    let queue = Queue::new(&rt, disk, Box::new(Deadline::new()), config);
    let bios: Vec<Bio> = [0, 8, 24, 16, 100, 200]
        .map(|start| Bio::new(Op::Write, Sector(start), vec![Buf::zeroed(4096).into()]))
        .into();
    queue.submit_all(&mut bios.into_iter());
    assert_eq!(queue.load(), (0, 0, 0));
    trace.finish().unwrap();

    let Some(out) = tool("blkparse", &["-i", "q", "-f", "%a %S %n\n", "-d", "q.bin"], dir.path()) else {
        return;
    };
    let lines: Vec<&str> = out.lines().take_while(|l| !l.starts_with("CPU")).map(str::trim).collect();
    let count = |letter: &str| lines.iter().filter(|l| l.starts_with(letter)).count();
    assert_eq!(
        [count("Q"), count("G"), count("I"), count("M"), count("D"), count("C")],
        [6, 4, 4, 2, 3, 3],
        "{out}"
    );
    assert!(lines.contains(&"D 0 32") && lines.contains(&"C 0 32"), "four bios as one request:\n{out}");
    if let Some(report) = tool("btt", &["-i", "q.bin"], dir.path()) {
        for row in ["Q2Q", "Q2G", "G2I", "Q2M", "I2D", "M2D", "D2C", "Q2C"] {
            assert!(report.lines().any(|l| l.starts_with(row)), "{row} in\n{report}");
        }
    }
}

#[test]
fn blkparse_shows_the_flushes_of_a_queue() {
    let rt = Rt::real(RealConfig::default());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("disk");
    std::fs::File::create(&file).unwrap().set_len(1 << 20).unwrap();
    let disk = FileDevice::open(&file, FileOptions { write: true, direct: false }).unwrap();
    let trace = Blktrace::create(&dir.path().join("f"), 8, 48).unwrap();
    let config = QueueConfig { blktrace: Some(trace.clone()), number: (8, 48), ..QueueConfig::default() };
    let queue = Queue::new(&rt, Arc::new(disk), Box::new(Deadline::new()), config);
    rt.block_on(extant_block::flush(&queue)).unwrap().unwrap();
    let mut write = Bio::new(Op::Write, Sector(8), vec![Buf::zeroed(512).into()]);
    write.flags = BioFlags::PREFLUSH;
    rt.block_on(execute(&queue, write)).unwrap().1.unwrap();
    trace.finish().unwrap();
    let Some(out) = tool("blkparse", &["-i", "f", "-f", "%a %d %S %n\n"], dir.path()) else { return };
    let lines: Vec<_> = out.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let end = lines.iter().position(|l| l.starts_with("CPU")).unwrap_or(lines.len());
    let lines: Vec<_> = lines[..end].iter().filter(|l| !l.is_empty()).collect();
    let flush = ["D FWS 0 0", "C FWS 0 0"];
    // It arrives at the queue once its flush is done.
    let write = ["Q W 8 1", "G W 8 1", "I W 8 1", "D W 8 1", "C W 8 1"];
    assert_eq!(lines, [&["Q FW 0 0"][..], &flush, &flush, &write].concat());
}
