//! File data: a stream, cold and warm reads, small writes, random reads, syncs, a database.

use super::bed::{self, text};
use super::report::Target;
use super::side::{Kind, Side};
use super::{Figure, Figures, Options, Part, Result, Row};
use std::process::Command;

/// Length of the file, in MiB.
const FILE_MIB: u64 = 1024;
const SMALL_WRITES: u64 = 50_000;
const SYNCS_EACH: u64 = 2000;
const TRANSACTIONS: u64 = 500;
/// Longest duration of a random read, in seconds.
const RANDOM_SECONDS: u64 = 4;

pub(super) const PART: Part = Part {
    name: "data",
    sides: &[Kind::Ours, Kind::Null, Kind::Kernel, Kind::Fuse2fs, Kind::Raw],
    allow_other: false,
    rows: &[
        Row {
            name: "stream of 1 MiB writes, and fsync",
            unit: "MiB/s",
            targets: &[
                (Kind::Raw, Target::AtLeast(0.9)),
                (Kind::Null, Target::None),
                (Kind::Kernel, Target::None),
                (Kind::Fuse2fs, Target::None),
            ],
        },
        Row {
            name: "read, cold",
            unit: "MiB/s",
            targets: &[
                (Kind::Null, Target::AtLeast(0.9)),
                (Kind::Kernel, Target::AtLeast(0.8)),
                (Kind::Fuse2fs, Target::None),
            ],
        },
        Row { name: "read, warm", unit: "MiB/s", targets: &[(Kind::Null, Target::AtLeast(0.95))] },
        Row {
            name: "random 4 KiB buffered writes",
            unit: "k/s",
            targets: &[(Kind::Null, Target::AtLeast(0.8)), (Kind::Kernel, Target::None)],
        },
        Row {
            name: "random 4 KiB reads, 16 threads, cold",
            unit: "k/s",
            targets: &[
                (Kind::Raw, Target::AtLeast(0.7)),
                (Kind::Kernel, Target::AtLeast(1.3)),
                (Kind::Null, Target::None),
                (Kind::Fuse2fs, Target::None),
            ],
        },
        Row {
            name: "random 4 KiB O_DIRECT reads, QD32",
            unit: "k/s",
            targets: &[
                (Kind::Raw, Target::AtLeast(0.7)),
                (Kind::Kernel, Target::AtLeast(1.3)),
                (Kind::Null, Target::None),
                (Kind::Fuse2fs, Target::None),
            ],
        },
    ],
    run,
};

pub(super) const SYNCS: Part = Part {
    name: "syncs",
    sides: &[Kind::Ours, Kind::Kernel, Kind::Fuse2fs],
    allow_other: false,
    rows: &[
        Row {
            name: "4 KiB append and fsync, p50",
            unit: "us",
            targets: &[(Kind::Kernel, Target::AtMost(1.5)), (Kind::Fuse2fs, Target::None)],
        },
        Row {
            name: "4 KiB append and fsync, p99",
            unit: "us",
            targets: &[(Kind::Kernel, Target::AtMost(1.5)), (Kind::Fuse2fs, Target::None)],
        },
        Row {
            name: "sqlite, rollback journal, FULL: transactions",
            unit: "/s",
            targets: &[(Kind::Kernel, Target::AtLeast(0.8)), (Kind::Fuse2fs, Target::None)],
        },
    ],
    run: syncs,
};

/// Runs fio; returns thousands of requests per second.
fn fio(side: &Side, name: &str, mib: u64, args: &[&str]) -> Result<Option<Figure>> {
    let output = Command::new("fio")
        .args(["--name=bench", "--thread", "--group_reporting", "--output-format=json", "--fallocate=none"])
        .arg(format!("--filename={}", side.at.join(name).display()))
        .arg(format!("--size={mib}m"))
        .args(args)
        .output()?;
    if !output.status.success() {
        return Err(format!("fio: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let json: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let job = &json["jobs"][0];
    let iops = |key: &str| job[key]["iops"].as_f64().unwrap_or(0.0);
    Ok(Figure::value((iops("read") + iops("write")) / 1000.0))
}

fn run(options: &Options, side: &mut Side) -> Result<Figures> {
    let mib = options.scaled(FILE_MIB);
    let is_raw = side.kind == Kind::Raw;
    // The raw file lies in the host's file system and is allocated first, like the images.
    let name = if is_raw { "raw.data" } else { "file" };
    let direct = ["--ioengine=io_uring", "--direct=1"];
    let whole = format!("--runtime={RANDOM_SECONDS}");
    let mut figures = Vec::new();
    if is_raw {
        if !side.at.join(name).exists() {
            side.step("write", name, mib, 0)?;
        }
        let stream = ["--rw=write", "--bs=1m", "--iodepth=8", "--end_fsync=1", "--overwrite=1"];
        let rate = fio(side, name, mib, &[&direct[..], &stream].concat())?;
        figures.push(rate.map(|figure| Figure { value: figure.value * 1000.0, ..figure }));
        figures.extend([None; 3]);
    } else {
        let rate = |step| Figure::rate(step, mib as f64);
        figures.push(rate(side.step("write", name, mib, 0)?));
        side.cool()?;
        figures.push(rate(side.step("read", name, mib, 0)?));
        figures.push(rate(side.step("read", name, mib, 0)?));
        let writes = options.scaled(SMALL_WRITES);
        figures.push(Figure::rate(side.step("scribble", name, writes, 0)?, writes as f64 / 1000.0));
    }
    cool(side, name)?;
    let each = format!("--offset_increment={}m", (mib / 16).max(1));
    let threads = ["--ioengine=psync", "--rw=randread", "--bs=4k", "--numjobs=16", &each, &whole];
    let raw = if is_raw { &["--direct=1"][..] } else { &[] };
    figures.push(fio(side, name, (mib / 16).max(1), &[&threads, raw].concat())?);
    cool(side, name)?;
    let queued = ["--rw=randread", "--bs=4k", "--iodepth=32", &whole];
    figures.push(fio(side, name, mib, &[&direct[..], &queued].concat())?);
    Ok(figures)
}

fn cool(side: &mut Side, name: &str) -> Result<()> {
    match side.kind {
        Kind::Raw => bed::forget(&side.at.join(name)),
        _ => side.cool(),
    }
}

/// A script that inserts rows, one transaction each, and prints the seconds.
const DATABASE: &str = "
import sqlite3, sys, time
base = sqlite3.connect('base.db', isolation_level=None)
base.execute('pragma journal_mode=delete')
base.execute('pragma synchronous=full')
base.execute('create table t(id integer primary key, a text, b integer)')
start = time.monotonic()
for n in range(int(sys.argv[1])):
    base.execute('insert into t(a, b) values(?, ?)', (f'row {n} with some text', n * 7))
print(time.monotonic() - start)
";

fn syncs(options: &Options, side: &mut Side) -> Result<Figures> {
    let (figures, _) = side.step("fsync", "log", options.scaled(SYNCS_EACH), 0)?;
    let mut figures: Figures = figures.into_iter().map(Figure::value).collect();
    let count = options.scaled(TRANSACTIONS);
    let mut command = Command::new("python3");
    command.args(["-c", DATABASE, &count.to_string()]).current_dir(&side.at);
    let output = command.output()?;
    if !output.status.success() {
        return Err(
            format!("sqlite on {}: {}", text(&side.at), String::from_utf8_lossy(&output.stderr)).into()
        );
    }
    let seconds: f64 = String::from_utf8_lossy(&output.stdout).trim().parse()?;
    figures.push(Figure::value(count as f64 / seconds));
    Ok(figures)
}
