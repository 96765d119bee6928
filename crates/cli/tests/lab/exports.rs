//! Files that a run writes in addition to its table: blktraces, and reports with drawings.

use crate::{lab, root};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Actions with sector and sector count, from blkparse; `None`, with a message, if it is not
/// installed.
fn parsed(dir: &Path, name: &str) -> Option<Vec<(String, u64, u64)>> {
    let args = ["-i", name, "-f", "%a %S %n\n"];
    let Ok(output) = Command::new("blkparse").args(args).current_dir(dir).output() else {
        println!("skipped: blkparse is not installed");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [action, sector, count] = words[..] else { return None };
        Some((action.to_owned(), sector.parse().ok()?, count.parse().ok()?))
    };
    Some(text.lines().take_while(|line| !line.starts_with("CPU")).filter_map(line).collect())
}

#[test]
fn blkparse_reads_the_commands_of_every_modelled_disk() {
    let dir = tempfile::tempdir().unwrap();
    let jbod = std::fs::read_to_string(root().join("machines/jbod10-2011.toml")).unwrap();
    let machine = dir.path().join("two.toml");
    std::fs::write(&machine, jbod.replace("count = 10", "count = 2")).unwrap();
    let jobs = dir.path().join("two.fio");
    let global = "[global]\nrw=write\nbs=64k\nsize=4m\ndirect=1\n";
    std::fs::write(&jobs, format!("{global}[a]\nfilename=/dev/sd0\n[b]\nfilename=/dev/sd1\n")).unwrap();
    let base = dir.path().join("run");
    let words = ["run", "--elevator", "mq-deadline", "--machine"];
    let words = [&words[..], &[machine.to_str().unwrap(), "--blktrace", base.to_str().unwrap()]].concat();
    lab(&[&words[..], &[jobs.to_str().unwrap()]].concat()).unwrap();
    for disk in ["sd0", "sd1"] {
        let Some(lines) = parsed(dir.path(), &format!("run.{disk}")) else { return };
        let of = |action: &str| {
            let own = lines.iter().filter(|line| line.0 == action);
            own.map(|(_, sector, count)| (*sector, *count)).collect::<BTreeMap<u64, u64>>()
        };
        assert_eq!(of("Q").len(), 64, "{disk}: 4 MiB in writes of 64 KiB");
        for action in ["D", "C"] {
            assert_eq!(of(action).values().sum::<u64>(), 4 << 11, "{disk}: every sector once as {action}");
        }
        assert_eq!(of("D"), of("C"), "{disk}: what was issued ended");
    }
}

#[test]
fn a_report_has_its_tables_its_drawings_and_the_command_that_repeats_each() {
    let dir = tempfile::tempdir().unwrap();
    let experiment = root().join("experiments/delalloc-latency");
    let write = |name: &str| {
        let folder = dir.path().join(name);
        let options = ["run", "--seconds", "1", "--row", "released", "--row", "extant", "--report"];
        let paths = [folder.to_str().unwrap(), experiment.to_str().unwrap()];
        lab(&[&options[..], &paths].concat()).unwrap();
        ["report.md", "workload-1.svg"].map(|file| std::fs::read_to_string(folder.join(file)).unwrap())
    };
    let [text, drawing] = write("once");
    for row in ["released", "extant"] {
        assert!(text.contains(&format!("extant lab run --workload 'dd' --row '{row}' ")), "{text}");
        assert!(drawing.contains(row), "{row} is in no drawing");
    }
    assert!(text.contains("![dd](workload-1.svg)"), "{text}");
    for title in
        ["scheduling latency", "dirty and under write-back", "sizes of commands", "processor time by cause"]
    {
        assert!(drawing.contains(title), "{title} is missing");
    }
    assert_eq!(write("again"), [text, drawing], "the same runs, the same bytes");
}
