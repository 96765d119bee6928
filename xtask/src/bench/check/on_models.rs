//! Checks in virtual time: on a modelled disk, beside e2fsck's reads, and on one to eight modelled
//! processors.

use super::Result;
use super::pattern::{Call, Pattern, record};
use crate::bench::watched::Watched;
use extant_block::{Bio, Device, IoErrorKind, Limits, Op, Sector};
use extant_cache::{CacheConfig, FlatFile, PageCache};
use extant_check::{Options, check};
use extant_history::{BlockHost, elevator};
use extant_iosched::{Queue, QueueConfig};
use extant_rt::{Cpu, Nanos, Rt};
use extant_sim::disk::{DiskKind, DiskModel, Disks, NOMINAL_SEED};
use extant_sim::{DeviceClock, Machine, Sim};
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The rules of counting, printed before any figure.
const RULES: &str = "\
Rules:
- The processors are those of machines/vm-2026.toml, the disk is that of machines/sata-7200-2023.toml
  with twice its heads and capacity, because image c has 1 TiB. Its elevator is mq-deadline.
- extant: the check itself runs in the virtual world, with the image's bytes. Its work costs what the
  machine's file says. It has four tasks, as by default, and nothing is cached.
- e2fsck: the reads and hints that strace sees `e2fsck -fn` make, in order, each after the one before,
  through a page cache that reads 128 KiB ahead and never evicts. Its own processor time, as the host
  measured it, is spread evenly over them.
- Scaling: the host has everything in its memory, and a read takes 900 ns for each 4 KiB, which is the
  system time of warm runs. There are as many tasks as processors. That processors share caches and
  the memory's bandwidth is not modelled.
";

/// Minimum ratios of e2fsck's time to ours on the modelled disk.
const LEAST: &[(&str, f64)] = &[("a", 1.0), ("a2", 1.5), ("b", 1.0), ("c", 2.0), ("d", 1.0)];
const PROCESSORS: [usize; 4] = [1, 2, 4, 8];
/// Linux's default (`read_ahead_kb`).
const READ_AHEAD_BYTES: u64 = 128 << 10;
const PAGE: u64 = 4096;
/// System time of a warm check of image a for each page that it reads, 0.15 s / 162,000.
const COPY_NS: u64 = 900;
/// More than any image's metadata.
const CACHE_BYTES: u64 = 4 << 30;

pub(super) fn run(images: &[(&str, PathBuf)]) -> Result<()> {
    println!("{RULES}");
    let machine = machine()?;
    println!("| image | extant: s | reads | MB | e2fsck: s | reads | MB | ratio | target | |");
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|---|");
    for (name, image) in images {
        let least = LEAST.iter().find(|(known, _)| known == name).map_or(0.0, |(_, least)| *least);
        let (ours, theirs) = (ours(&machine, image)?, theirs(&machine, image, &record(image)?)?);
        let ratio = theirs.seconds / ours.seconds;
        let verdict = if ratio >= least { "met" } else { "missed" };
        println!("| {name} | {} | {} | {ratio:.2} | {least} | {verdict} |", ours.cells(), theirs.cells());
    }
    println!("\n| image, by processors | {} |", PROCESSORS.map(|count| count.to_string()).join(" | "));
    println!("|---|{}", "--:|".repeat(PROCESSORS.len()));
    for (name, image) in images {
        let mut cells = Vec::new();
        let mut one = None;
        for count in PROCESSORS {
            let seconds = cached(&machine, image, count)?;
            let one = *one.get_or_insert(seconds);
            cells.push(format!("{:.1} ms ({:.2})", seconds * 1e3, one / seconds));
        }
        println!("| {name} | {} |", cells.join(" | "));
    }
    Ok(())
}

/// Processors of one file with the prices of a check, and the disk of another.
fn machine() -> Result<Machine> {
    let machines = Path::new(env!("CARGO_MANIFEST_DIR")).join("../machines");
    let disks = Machine::load(&machines.join("sata-7200-2023.toml"))?.disks;
    let file = machines.join("vm-2026.toml");
    // The table of prices is the file's last one.
    let text = std::fs::read_to_string(&file)? + include_str!("prices.toml");
    let machine = Machine::parse(&file.display().to_string(), &text)?.with_disks(disks);
    let costs = [
        extant_rt::Cost::table(),
        extant_iosched::Cost::table(),
        extant_cache::Cost::table(),
        extant_check::Cost::table(),
    ];
    machine.check_costs(&costs)?;
    let disks = machine.disks.iter().cloned().map(doubled).collect();
    Ok(machine.with_disks(disks))
}

fn doubled(disk: DiskModel) -> DiskModel {
    let kind = match disk.kind {
        DiskKind::Rotating(mut spec) => {
            spec.capacity_bytes *= 2;
            spec.heads *= 2;
            DiskKind::Rotating(spec)
        }
        kind => kind,
    };
    DiskModel { kind, ..disk }
}

/// What a run has taken.
struct Run {
    seconds: f64,
    /// Commands to the disk, and what they read.
    reads: usize,
    bytes: u64,
}

impl Run {
    fn new(took: Nanos, seen: &Watched) -> Self {
        let reads = seen.take().reads;
        let bytes = reads.iter().map(|range| range.end - range.start).sum();
        Self { seconds: seconds(took), reads: reads.len(), bytes }
    }

    fn cells(&self) -> String {
        format!("{:.2} | {} | {}", self.seconds, self.reads, self.bytes / 1_000_000)
    }
}

fn seconds(time: Nanos) -> f64 {
    time.0 as f64 / 1e9
}

/// A modelled disk behind its queue, and what it is asked.
fn disk(sim: &Sim) -> Result<(Arc<dyn Device>, Arc<Watched>)> {
    let model = Watched::new(Disks::attach(sim).device(0));
    let config = QueueConfig { depth: sim.machine().disks[0].queue_depth(), ..QueueConfig::default() };
    let elevator = elevator("mq-deadline", &BlockHost::default())?;
    Ok((Arc::new(Queue::new(sim.rt(), model.clone(), elevator, config)), model))
}

fn ours(machine: &Machine, image: &Path) -> Result<Run> {
    let sim = Sim::new(machine.clone(), NOMINAL_SEED);
    let (disk, seen) = disk(&sim)?;
    let took = checked(&sim, Arc::new(Image::new(image, &sim, Some(disk))?), Options::default().tasks)?;
    Ok(Run::new(took, &seen))
}

fn cached(machine: &Machine, image: &Path, processors: usize) -> Result<f64> {
    let mut machine = machine.clone();
    machine.processors.count = processors;
    let sim = Sim::new(machine, NOMINAL_SEED);
    let image = Image::new(image, &sim, None)?;
    Ok(seconds(checked(&sim, Arc::new(image), processors)?))
}

/// Checks an image, which must be in order.
fn checked(sim: &Sim, device: Arc<dyn Device>, tasks: usize) -> Result<Nanos> {
    let rt = sim.rt();
    let start = rt.now();
    let checked = rt.block_on(check(rt, device, Options { tasks, ..Options::default() }))??;
    match checked.is_clean() {
        true => Ok(rt.now() - start),
        false => Err(format!("{} findings", checked.findings.len()).into()),
    }
}

fn theirs(machine: &Machine, image: &Path, pattern: &Pattern) -> Result<Run> {
    let sim = Sim::new(machine.clone(), NOMINAL_SEED);
    let rt = sim.rt();
    let (disk, seen) = disk(&sim)?;
    let bytes = File::open(image)?.metadata()?.len();
    let each = Cpu(Nanos(pattern.user.0 / pattern.calls.len().max(1) as u64));
    let took = rt.block_on(async {
        let settings = CacheConfig {
            read_ahead_bytes: READ_AHEAD_BYTES,
            phantom_frames: true,
            ..CacheConfig::with_budget(CACHE_BYTES)
        };
        let cache = PageCache::new(rt, settings)?;
        let whole = FlatFile::new(Sector(0), bytes);
        let file = cache.attach(disk).mapping(Arc::new(whole), 1, bytes).open();
        let mut buffer = Vec::new();
        let start = rt.now();
        for call in &pattern.calls {
            rt.charge(each);
            match call {
                Call::Read(range) => {
                    buffer.resize(usize::try_from(range.end - range.start)?, 0);
                    file.read(range.start, &mut buffer).await?;
                }
                Call::WillNeed(range) => file.will_need(range.clone()).await,
            }
        }
        let took = rt.now() - start;
        drop(file);
        cache.close().await?;
        Ok::<_, Box<dyn std::error::Error>>(took)
    })??;
    Ok(Run::new(took, &seen))
}

/// An image in the virtual world: a device gives the time of a read, and the file its bytes.
/// Without a device, reads cost processor time only.
struct Image {
    rt: Rt,
    clock: DeviceClock,
    file: Arc<File>,
    disk: Option<Arc<dyn Device>>,
    limits: Limits,
}

impl Image {
    fn new(path: &Path, sim: &Sim, disk: Option<Arc<dyn Device>>) -> Result<Self> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let limits = match &disk {
            Some(disk) => Limits { capacity_bytes: bytes, ..disk.limits().clone() },
            None => Limits::new("an image in memory", bytes),
        };
        let (rt, clock) = (sim.rt().clone(), sim.devices());
        Ok(Self { rt, clock, file: Arc::new(file), disk, limits })
    }
}

/// Fills a bio's memory.
fn fill(file: &File, bio: &mut Bio) -> io::Result<()> {
    let mut at = bio.start.0 * Sector::BYTES;
    for segment in &mut bio.segments {
        let to = segment.as_mut_slice().expect("a read has memory of its own");
        file.read_exact_at(to, at)?;
        at += to.len() as u64;
    }
    Ok(())
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Image({})", self.limits.name)
    }
}

impl Device for Image {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, mut bio: Bio) {
        let name = &self.limits.name;
        if bio.op != Op::Read {
            return bio.end_as(name, Err(IoErrorKind::Os(Errno::ROFS.raw_os_error())));
        }
        let file = self.file.clone();
        let Some(disk) = &self.disk else {
            self.rt.charge(Cpu(Nanos(COPY_NS * bio.bytes.div_ceil(PAGE))));
            // It ends once the submitter has copied it. Until then, other tasks catch up in time.
            return self.clock.call_at(self.rt.now(), move || {
                fill(&file, &mut bio).expect("the image can be read");
                bio.end(Ok(()));
            });
        };
        if let Some(completion) = bio.take_completion() {
            bio.on_end(Box::new(move |mut bio, result| {
                if result.is_ok() {
                    fill(&file, &mut bio).expect("the image can be read");
                }
                completion(bio, result);
            }));
        }
        disk.submit(bio);
    }
}
