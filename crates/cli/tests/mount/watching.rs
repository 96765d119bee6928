//! Metrics and traces of a mount.

use crate::bed::{Bed, can_mount, extant, text, wait_for_end};
use crate::testbed::run;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// The value of a line that begins so.
fn value(all: &str, line: &str) -> u64 {
    let line =
        all.lines().find_map(|found| found.strip_prefix(line)).unwrap_or_else(|| panic!("{line}:\n{all}"));
    line.trim().parse().unwrap()
}

#[test]
fn requests_are_counted_and_traced() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (socket, trace) = (dir.path().join("socket"), dir.path().join("trace"));
    let mut bed = Bed::unmounted("8M", &[]);
    let mount = |bed: &Bed| {
        let watch = ["mount", "--metrics", text(&socket), "--trace", text(&trace)];
        let ran = extant(&[&watch[..], &[text(&bed.image), text(&bed.at)]].concat());
        assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
    };
    mount(&bed);
    for n in 0..5 {
        fs::write(bed.path(&format!("file{n}")), vec![n; 10_000]).unwrap();
    }
    fs::create_dir(bed.path("file0")).unwrap_err();
    run("sync", &["-f", text(&bed.at)]);
    fs::File::open(bed.path("file1")).unwrap().sync_all().unwrap();
    let told = || {
        let mut client = UnixStream::connect(&socket).unwrap();
        client.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    };
    let all = told();
    assert_eq!(value(&all, "extant_request_seconds_count{op=\"create\"}"), 5);
    assert!(value(&all, "extant_journal_commits_total ") >= 1, "{all}");
    assert!(value(&all, "extant_known_inodes ") >= 6, "{all}");
    let shown = extant(&["top", "--once", "--json", text(&bed.at)]).clean_text();
    assert!(shown.contains("\"operation\": \"create\",\n      \"requests\": 5,"), "{}", shown);
    let shown = extant(&["top", "--once", text(&bed.at)]).clean_text();
    let line = shown.lines().find(|line| line.starts_with("create ")).unwrap();
    assert_eq!(line.split_whitespace().nth(1), Some("5"), "{}", shown);
    let traced = fs::read_to_string(&trace).unwrap();
    let create = traced.lines().find(|line| line.contains(" create ")).unwrap();
    assert!(create.contains(" inode=1 uid=") && create.contains(" name=\"file0\" error=0 us="), "{create}");
    // A server that is killed leaves no socket either.
    let monitor = bed.monitor();
    bed.kill();
    wait_for_end(&monitor);
    assert!(!socket.exists());
    mount(&bed);
    assert_eq!(value(&told(), "extant_known_inodes "), 1);
    let monitor = bed.monitor();
    bed.umount();
    wait_for_end(&monitor);
    assert!(!socket.exists());
    assert_eq!(extant(&["top", "--once", text(&bed.at)]).code, Some(1), "it is not mounted");
}
