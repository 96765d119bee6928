//! The steps. Each runs in a process of its own, which opens the volume, measures, and closes it.

use crate::Result;
use crate::bed::{forget, peak_kib, processor_ns, text};
use crate::peer::{Access, Kind, Open, Peer};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A step.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    /// Whether it changes the volume.
    pub(crate) writes: bool,
    work: fn(&mut dyn Peer) -> Result<()>,
}

impl Step {
    pub(crate) fn is_kill(&self) -> bool {
        self.name == KILL.name
    }

    /// Whether it is the step that writes the large file.
    pub(crate) fn writes_stream(&self) -> bool {
        self.name == "write"
    }
}

/// The step whose process is killed.
pub(crate) const KILL: &Step = &Step { name: "kill -9", writes: true, work: until_killed };

/// All steps, in order; each finds what those before it have left.
pub(crate) const ALL: &[&Step] = &[
    &Step { name: "create", writes: true, work: create },
    &Step { name: "spread", writes: true, work: spread },
    &Step { name: "write", writes: true, work: write },
    &Step { name: "overwrite", writes: true, work: overwrite },
    &Step { name: "read", writes: false, work: read },
    &Step { name: "random", writes: false, work: random },
    &Step { name: "small", writes: false, work: small },
    &Step { name: "list", writes: false, work: list },
    &Step { name: "rename", writes: true, work: rename },
    &Step { name: "delete", writes: true, work: delete },
    KILL,
];

/// A row of the tables.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) label: &'static str,
    /// What the processor time is divided by.
    pub(crate) operations: f64,
}

pub(crate) const ROWS: &[Row] = &[
    Row { name: "create", label: "create 5,000 files of 4 KiB, sync", operations: 5000.0 },
    Row { name: "spread", label: "2,000 in 100 new directories, sync", operations: 2100.0 },
    Row { name: "write", label: "write 256 MiB, sync (processor time: a MiB)", operations: 256.0 },
    Row { name: "overwrite", label: "500 overwrites of 4 KiB, each with fsync", operations: 500.0 },
    Row { name: "cold", label: "read 256 MiB, cold (a MiB)", operations: 256.0 },
    Row { name: "warm", label: "read it again (a MiB)", operations: 256.0 },
    Row { name: "random", label: "20,000 random reads of 4 KiB, warm", operations: 20_000.0 },
    Row { name: "small", label: "read 5,000 small files, cold", operations: 5000.0 },
    Row { name: "again", label: "read them again", operations: 5000.0 },
    Row { name: "list", label: "list 5,000", operations: 5000.0 },
    Row { name: "rename", label: "rename 1,000, sync", operations: 1000.0 },
    Row { name: "delete", label: "delete 5,000, sync", operations: 5000.0 },
];

const FILES: u64 = 5000;
const SPREAD_DIRS: u64 = 100;
const SPREAD_FILES: u64 = 20;
const RENAMED: u64 = 1000;
const OVERWRITES: u64 = 500;
const READS: u64 = 20_000;
const BLOCK: usize = 4096;
const PIECE: usize = 1 << 20;
pub(crate) const STREAM_BYTES: u64 = 256 << 20;

const MANY: &str = "many";
pub(crate) const LARGE: &str = "large";
pub(crate) const STREAM: &str = "stream";

/// Where the process that is killed writes.
pub(crate) const KILL_DIR: &str = "kill";
/// The process is killed once so many files are synced.
pub(crate) const KILL_FILES: u64 = 200;
const KILL_SYNC: u64 = 10;

/// The name of a small file.
pub(crate) fn small_name(n: u64) -> String {
    format!("file-{n:06}")
}

/// The contents of a small file: one block.
pub(crate) fn small_contents(n: u64) -> Vec<u8> {
    let mut block = vec![0x5a; BLOCK];
    stamp(&mut block, n, 0);
    block
}

/// Writes a block's place into it, so that a reader can tell blocks apart.
fn stamp(block: &mut [u8], file: u64, index: u64) {
    block[..8].copy_from_slice(&file.to_le_bytes());
    block[8..16].copy_from_slice(&index.to_le_bytes());
}

/// Fails unless these are the right blocks.
fn check(blocks: &[u8], file: u64, first: u64) -> Result<()> {
    for (n, block) in (first..).zip(blocks.chunks(BLOCK)) {
        let is_right = block.len() == BLOCK
            && block[..8] == file.to_le_bytes()
            && block[8..16] == n.to_le_bytes()
            && block[BLOCK - 1] == 0x5a;
        if !is_right {
            return Err(format!("block {n} of file {file} has wrong contents").into());
        }
    }
    Ok(())
}

/// Random numbers, the same for every peer.
pub(crate) struct Dice(u64);

impl Dice {
    /// From a seed that is not 0.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % end
    }
}

/// The stream's number in its stamps; no small file has it.
const STREAM_FILE: u64 = u64::MAX;

fn timed(row: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let (start, processor) = (Instant::now(), processor_ns());
    work()?;
    let (wall, processor) = (start.elapsed().as_nanos(), processor_ns() - processor);
    println!("measured {row} {wall} {processor}");
    Ok(())
}

fn create(peer: &mut dyn Peer) -> Result<()> {
    peer.make_dir(MANY)?;
    timed("create", || {
        for n in 0..FILES {
            peer.put(MANY, &small_name(n), &small_contents(n))?;
        }
        peer.sync()
    })
}

fn spread(peer: &mut dyn Peer) -> Result<()> {
    timed("spread", || {
        for d in 0..SPREAD_DIRS {
            let dir = format!("dir-{d:03}");
            peer.make_dir(&dir)?;
            for n in 0..SPREAD_FILES {
                peer.put(&dir, &small_name(n), &small_contents(n))?;
            }
        }
        peer.sync()
    })
}

fn write(peer: &mut dyn Peer) -> Result<()> {
    peer.make_dir(LARGE)?;
    let mut piece = vec![0x5a; PIECE];
    timed("write", || {
        let mut file = peer.open(LARGE, STREAM, Access::Write)?;
        for n in 0..STREAM_BYTES / PIECE as u64 {
            let first = n * (PIECE / BLOCK) as u64;
            for (index, block) in (first..).zip(piece.chunks_mut(BLOCK)) {
                stamp(block, STREAM_FILE, index);
            }
            file.write_at(n * PIECE as u64, &piece)?;
        }
        drop(file);
        peer.sync()
    })
}

fn overwrite(peer: &mut dyn Peer) -> Result<()> {
    let mut file = peer.open(LARGE, STREAM, Access::Write)?;
    let mut dice = Dice::new(1);
    let mut block = vec![0x5a; BLOCK];
    timed("overwrite", || {
        for _ in 0..OVERWRITES {
            let index = dice.below(STREAM_BYTES / BLOCK as u64);
            stamp(&mut block, STREAM_FILE, index);
            file.write_at(index * BLOCK as u64, &block)?;
            file.sync()?;
        }
        Ok(())
    })
}

fn read_through(file: &mut dyn Open, piece: &mut [u8]) -> Result<()> {
    for n in 0..STREAM_BYTES / PIECE as u64 {
        file.read_at(n * PIECE as u64, piece)?;
        check(piece, STREAM_FILE, n * (PIECE / BLOCK) as u64)?;
    }
    Ok(())
}

fn read(peer: &mut dyn Peer) -> Result<()> {
    let mut file = peer.open(LARGE, STREAM, Access::Read)?;
    let mut piece = vec![0; PIECE];
    for row in ["cold", "warm"] {
        timed(row, || read_through(&mut *file, &mut piece))?;
    }
    Ok(())
}

fn random(peer: &mut dyn Peer) -> Result<()> {
    let mut file = peer.open(LARGE, STREAM, Access::Read)?;
    read_through(&mut *file, &mut vec![0; PIECE])?;
    let mut dice = Dice::new(2);
    let mut block = vec![0; BLOCK];
    timed("random", || {
        for _ in 0..READS {
            let index = dice.below(STREAM_BYTES / BLOCK as u64);
            file.read_at(index * BLOCK as u64, &mut block)?;
            check(&block, STREAM_FILE, index)?;
        }
        Ok(())
    })
}

fn small(peer: &mut dyn Peer) -> Result<()> {
    for row in ["small", "again"] {
        timed(row, || {
            for n in 0..FILES {
                check(&peer.get(MANY, &small_name(n))?, n, 0)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn list(peer: &mut dyn Peer) -> Result<()> {
    timed("list", || match peer.list(MANY)? as u64 {
        FILES => Ok(()),
        names => Err(format!("{names} names instead of {FILES}").into()),
    })
}

fn renamed(n: u64) -> String {
    format!("new-{n:06}")
}

fn rename(peer: &mut dyn Peer) -> Result<()> {
    timed("rename", || {
        for n in 0..RENAMED {
            peer.rename(MANY, &small_name(n), &renamed(n))?;
        }
        peer.sync()
    })
}

fn delete(peer: &mut dyn Peer) -> Result<()> {
    timed("delete", || {
        for n in 0..FILES {
            let name = if n < RENAMED { renamed(n) } else { small_name(n) };
            peer.remove(MANY, &name)?;
        }
        peer.sync()
    })
}

fn until_killed(peer: &mut dyn Peer) -> Result<()> {
    peer.make_dir(KILL_DIR)?;
    // The parent ends it long before.
    for n in 0..100 * KILL_FILES {
        if n > 0 && n % KILL_SYNC == 0 {
            peer.sync()?;
            println!("synced {n}");
            std::io::stdout().flush()?;
        }
        peer.put(KILL_DIR, &small_name(n), &small_contents(n))?;
    }
    Ok(())
}

/// Runs one step; this is the process of its own.
pub(crate) fn child(step: &str, peer: &str, image: &Path) -> Result<()> {
    let step = ALL.iter().find(|known| known.name == step).ok_or("no such step")?;
    let access = if step.writes { Access::Write } else { Access::Read };
    let mut peer = Kind::named(peer)?.open(image, access)?;
    (step.work)(&mut *peer)?;
    peer.close()?;
    println!("peak {}", peak_kib()?);
    Ok(())
}

/// The times of one row in one round.
#[derive(Clone, Copy)]
pub(crate) struct Figure {
    pub(crate) wall_ns: u64,
    pub(crate) processor_ns: u64,
}

/// What a step's process has reported.
pub(crate) struct Measured {
    pub(crate) figures: Vec<(String, Figure)>,
    pub(crate) peak_kib: u64,
}

/// Starts the process of a step.
pub(crate) fn spawn(step: &Step, kind: &Kind, image: &Path) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["step", step.name, kind.name, text(image)]);
    Ok(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?)
}

/// Runs a step in a process of its own, on an image that the host has not cached.
pub(crate) fn run(step: &Step, kind: &Kind, image: &Path, limit: Duration) -> Result<Measured> {
    forget(image)?;
    let mut child = spawn(step, kind, image)?;
    let said = BufReader::new(child.stdout.take().expect("piped"));
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for line in said.lines().map_while(std::io::Result::ok) {
            if tell.send(line).is_err() {
                return;
            }
        }
    });
    let mut measured = Measured { figures: Vec::new(), peak_kib: 0 };
    let deadline = Instant::now() + limit;
    loop {
        let line = match told.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => line,
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                child.kill()?;
                child.wait()?;
                return Err(format!("not over after {} s", limit.as_secs()).into());
            }
        };
        match *line.split(' ').collect::<Vec<_>>() {
            ["measured", row, wall, processor] => {
                let figure = Figure { wall_ns: wall.parse()?, processor_ns: processor.parse()? };
                measured.figures.push((row.to_owned(), figure));
            }
            ["peak", kib] => measured.peak_kib = kib.parse()?,
            _ => {}
        }
    }
    match child.wait()? {
        status if status.success() => Ok(measured),
        status => Err(format!("its process ended with {status}").into()),
    }
}
