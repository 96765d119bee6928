//! Recording a run, and reporting and drawing the recording.

use crate::{lab, output};
use extant_history::DIRTY_CONTROLS;
use extant_lab::report::draw_trace;
use extant_lab::trace::{Trace, list, summary};
use std::path::{Path, PathBuf};

/// Records four writers on each of two disks, with 16 MiB of dirty memory between them, into this
/// file.
fn record(control: &str, file: &Path) {
    let machines = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines");
    let jbod = std::fs::read_to_string(machines.join("jbod10-2011.toml")).unwrap();
    let machine = file.with_extension("toml");
    std::fs::write(&machine, jbod.replace("count = 10", "count = 2")).unwrap();
    let jobs = file.with_extension("fio");
    let global = "[global]\nrw=write\nbs=256k\nsize=20g\nruntime=2\nnumjobs=4\ngroup_reporting\n";
    std::fs::write(&jobs, format!("{global}[a]\nfilename=/dev/sd0\n[b]\nfilename=/dev/sd1\n")).unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    lab(&[
        "run",
        "--machine",
        &text(&machine),
        "--cache",
        "64m",
        "--dirty-limit",
        "16m",
        "--dirty-control",
        control,
        "--trace",
        &text(file),
        &text(&jobs),
    ])
    .unwrap();
}

fn dir() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.trace");
    (dir, file)
}

#[test]
fn every_controller_s_pauses_are_told_with_their_cause() {
    let (_dir, file) = dir();
    for control in DIRTY_CONTROLS.iter().map(|policy| policy.name) {
        record(control, &file);
        let trace = Trace::load(&file).unwrap();
        assert!(trace.about.ends_with(&format!("dirty control {control}")), "{}", trace.about);
        assert_eq!(trace.devices.values().collect::<Vec<_>>(), ["sd0", "sd1"]);
        assert!(trace.levels.len() > 100 && trace.pauses.len() > 10, "{control}");
        // Only Linux's controllers let writers exceed the limit, by at most an eighth.
        let most = trace.levels.iter().map(|levels| levels.reclaimable + levels.writeback).max().unwrap();
        let allowed = if control == "extant" { 4096 } else { 4096 * 9 / 8 };
        assert!(most <= allowed, "{control}: {most} pages");
        let rule = control.split(['+', '-']).next().unwrap();
        assert!(trace.pauses.iter().any(|pause| pause.rule.starts_with(rule)), "{control}");
        let told = summary(&trace);
        assert!(
            told.contains("limit 16.0 MiB") && told.contains("p99 ms") && told.contains("<= 100 ms"),
            "{told}"
        );
        let lines = list(&trace);
        assert_eq!(lines.lines().count(), trace.pauses.len());
        let first = lines.lines().next().unwrap();
        assert!(first.contains(" sd") && first.contains(" ms ") && first.contains(" task_rate="), "{first}");
        // Eight writers cannot pause for longer, in total, than eight times the run (about 2 s).
        let total: u64 = trace.pauses.iter().map(|pause| pause.took.0).sum();
        assert!(total <= 8 * 2_200_000_000, "{control}: {total}");
    }
}

#[test]
fn the_drawing_shows_every_device_and_is_the_same_twice() {
    let (dir, file) = dir();
    record("extant", &file);
    let svg = |name: &str| {
        let path = dir.path().join(name);
        lab(&["report", file.to_str().unwrap(), "-o", path.to_str().unwrap()]).unwrap();
        std::fs::read_to_string(path).unwrap()
    };
    let drawn = svg("a.svg");
    assert!(drawn == svg("b.svg"));
    let bytes = std::fs::read(&file).unwrap();
    record("extant", &file);
    assert!(std::fs::read(&file).unwrap() == bytes, "recorded twice, the same");
    for text in
        ["all devices", "sd0", "sd1", "time, s", "MiB", "length, ms", "reclaimable", "write-back", "extant: "]
    {
        assert!(drawn.contains(text), "{text}");
    }
    assert!(drawn.starts_with("<svg") && drawn.trim_end().ends_with("</svg>"));
    // The names of lines stand below the panel, where they hide no data.
    let height_of = |text: &str| -> i32 {
        let (before, _) = drawn.split_once(&format!(">\n{text}\n<")).unwrap();
        let tag = &before[before.rfind("<text").unwrap()..];
        tag.split("y=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
    };
    assert!(height_of("background threshold") > height_of("time, s"));
    assert!(drawn.matches("<polyline").count() >= 5 + 2 * 3, "five lines of all, three of each");
    assert!(drawn.len() < 1 << 20);
    assert_eq!(draw_trace(&Trace::load(&file).unwrap()), drawn);
}

#[test]
fn perfetto_gets_all_events() {
    let (dir, _) = dir();
    let file = dir.path().join("run.json");
    record("extant", &file);
    let events: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    for name in ["cache/pause", "cache/dirty", "block/complete", "sched/switch"] {
        assert!(events.as_array().unwrap().iter().any(|event| event["name"] == name), "{name}");
    }
}

#[test]
fn files_that_are_no_trace_are_refused_with_their_line() {
    let (dir, file) = dir();
    let path = file.to_str().unwrap();
    let refused = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        let error = lab(&["report", path]).unwrap_err();
        error.strip_prefix(path).unwrap_or_else(|| panic!("{error}")).to_owned()
    };
    let no_trace = ":1: not a trace; record one with extant lab run --trace FILE";
    assert_eq!(refused(b""), no_trace);
    assert_eq!(refused(&[0xff; 3000]), no_trace);
    assert_eq!(refused(b"{\"jobs\": []}\n"), no_trace);
    let head = "extant-trace 1\nabout x\n";
    let with = |rest: &str| refused(format!("{head}{rest}").as_bytes());
    assert_eq!(with("0 1 2\n"), ":3: an event of a kind 0 that was not named before");
    assert_eq!(with("nonsense\n"), ":3: \"nonsense\" is not a number");
    assert_eq!(with("kind cache/pause device\n0 5 0\n"), ":4: cache/pause has no field took");
    assert_eq!(with("kind cache/pause device\n0 5\n"), ":4: cache/pause has 1 fields, not 0");
    assert_eq!(with("kind cache/pause device\n0 -5 0\n"), ":4: a time before the beginning");
    assert_eq!(with("device 0 sda"), ":3: is cut off or no text; record the trace again, to its end");
    let error = lab(&["report", dir.path().to_str().unwrap()]).unwrap_err();
    assert!(error.ends_with("is a directory; name a trace in it"), "{error}");
    let error = lab(&["report", "/nonexistent/t"]).unwrap_err();
    assert_eq!(error, "/nonexistent/t: No such file; record one with extant lab run --trace");
    std::fs::write(&file, head).unwrap();
    let error = lab(&["report", path, "-o", "/nonexistent/x.svg"]).unwrap_err();
    assert!(
        error.ends_with("nothing in it to draw: no job wrote through the page cache (direct=0)"),
        "{error}"
    );
    let error = lab(&["report", path, "-o", path]).unwrap_err();
    assert!(error.ends_with("is the trace itself; give the drawing another name"), "{error}");
    assert!(lab(&["report", path]).unwrap().ends_with("no writer waited\n"));
}

#[test]
fn no_bytes_make_the_reader_panic() {
    let (_dir, file) = dir();
    record("ioless", &file);
    let whole = std::fs::read(&file).unwrap();
    let good = &whole[..whole.len().min(4_000)];
    let mut rng = extant_rt::Rng::new(11);
    for _ in 0..2_000 {
        let mut bytes = good.to_vec();
        for _ in 0..1 + rng.below(4) {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] = match rng.below(3) {
                0 => b"0123456789 -:\n"[rng.below(14) as usize],
                1 => b'9',
                _ => rng.next_u64() as u8,
            };
        }
        if let Ok(trace) = Trace::read("t", &bytes[..]) {
            let _ = (summary(&trace), list(&trace));
        }
    }
}

const LEVELS: &str = "kind cache/levels device device_reclaimable device_writeback device_limit reclaimable writeback background limit\n";

#[test]
fn every_event_of_a_trace_is_told_and_drawn() {
    let most = u64::MAX;
    let names = "about \u{1}<&\"'>\ndevice 0 <sd&\u{7}\u{1b}[31m>\n";
    let pause = "kind cache/pause rule:word device took:ns\nword <no & room>\n";
    let full = format!("{most} ").repeat(7);
    for events in [
        // A single instant; empty pauses; nothing but pauses; numbers larger than any disk.
        format!("{LEVELS}0 0 0 0 0 0 0 0 0 0\n"),
        format!("{LEVELS}{pause}0 5 0 1 2 3 1 2 3 4\n1 0 0 0 0\n1 0 0 7 0\n"),
        format!("{pause}0 9 0 0 {most}\n0 9 0 1 1\n"),
        format!("{LEVELS}{pause}0 {} 0 {}\n1 0 0 0 {most}\n", i64::MAX, full.trim_end()),
    ] {
        let text = format!("extant-trace 1\n{names}{events}");
        let trace = Trace::read("t", text.as_bytes()).unwrap();
        let (told, drawn) = (summary(&trace) + &list(&trace), draw_trace(&trace));
        assert!(!told.contains(['\u{1}', '\u{7}', '\u{1b}']), "nothing that a terminal obeys");
        assert!(drawn.contains("&lt;&amp;&quot;&apos;&gt;") && !drawn.contains(['\u{1}', '\u{7}', '\u{1b}']));
        assert!(!drawn.contains("NaN") && drawn.trim_end().ends_with("</svg>"));
    }
}

#[test]
fn a_thousand_devices_are_drawn() {
    let mut text = format!("extant-trace 1\n{LEVELS}");
    for n in 0..20_000 {
        text.push_str(&format!("0 10000 {} {n} 1 2 {n} 4 5 6\n", n % 1000));
    }
    let drawn = draw_trace(&Trace::read("t", text.as_bytes()).unwrap());
    assert!(drawn.contains(">\ndevice 999\n<") && drawn.matches("<polyline").count() >= 3 * 1000);
}

#[test]
fn a_run_whose_trace_finds_no_room_still_says_what_it_measured() {
    let (dir, file) = dir();
    record("extant", &file);
    let (machine, jobs) = (file.with_extension("toml"), dir.path().join("run.fio"));
    let words =
        ["run", "--machine", machine.to_str().unwrap(), "--trace", "/dev/full", jobs.to_str().unwrap()];
    let output = output(&words);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error, "extant: /dev/full: No space left on device (os error 28)\n");
    assert!(String::from_utf8(output.stdout).unwrap().contains("write: IOPS="));
}

#[test]
fn a_recording_replaces_an_older_one_and_nothing_else() {
    let (dir, file) = dir();
    record("extant", &file);
    record("extant", &file);
    let (machine, jobs) = (file.with_extension("toml"), dir.path().join("run.fio"));
    let image = dir.path().join("disk.img");
    std::fs::write(&image, [0; 4096]).unwrap();
    let words = ["run", "--machine", machine.to_str().unwrap(), "--trace", image.to_str().unwrap()];
    let error = lab(&[&words[..], &[jobs.to_str().unwrap()]].concat()).unwrap_err();
    assert!(
        error.ends_with("is there already and is no trace; give another name, or remove it first"),
        "{error}"
    );
    assert_eq!(std::fs::read(&image).unwrap(), [0; 4096]);
}
