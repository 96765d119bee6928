//! The device path and `extant lab run` against fio's io_uring engine on the same file, and the NBD
//! client against nbdcopy and qemu-img on the same server.

use super::fio::{self, Outcome};
use super::{Result, median, read};
use extant_block::{
    Bio, Buf, Device, FileDevice, FileOptions, IoError, NbdDevice, NbdOptions, Op, Sector, StreamId,
};
use extant_rt::{Nanos, RealConfig, Rng, Rt};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use parking_lot::Mutex;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::task::{Poll, Waker};

const FILE_BYTES: u64 = 1 << 30;

/// One workload on a file.
#[derive(Clone, Copy)]
struct Job {
    name: &'static str,
    op: Op,
    random: bool,
    bytes: u64,
    depth: usize,
}

const JOBS: [Job; 3] = [
    Job { name: "4 KiB random read, QD1", op: Op::Read, random: true, bytes: 4096, depth: 1 },
    Job { name: "4 KiB random read, QD32", op: Op::Read, random: true, bytes: 4096, depth: 32 },
    Job { name: "1 MiB sequential write, QD8", op: Op::Write, random: false, bytes: 1 << 20, depth: 8 },
];

/// When a run ends.
#[derive(Clone, Copy)]
enum Until {
    Seconds(u64),
    Count(u64),
}

pub(super) fn run(args: &[&str]) -> Result<()> {
    let mut rounds = 5;
    let mut seconds = 2;
    let mut dir = PathBuf::from("target");
    let mut only = None;
    let mut extant = None;
    for pair in args.chunks(2) {
        match *pair {
            ["--rounds", n] => rounds = n.parse()?,
            ["--seconds", n] => seconds = n.parse()?,
            ["--dir", path] => dir = path.into(),
            ["--only", part @ ("file" | "lab" | "nbd")] => only = Some(part),
            ["--extant", path] => extant = Some(std::fs::canonicalize(path)?),
            _ => {
                let usage = "usage: cargo xtask bench block [--rounds N] [--seconds N] [--dir DIRECTORY] \
                             [--only file|lab|nbd] [--extant PROGRAM]";
                return Err(usage.into());
            }
        }
    }
    std::fs::create_dir_all(&dir)?;
    let path = dir.join("bench-block.img");
    fill(&path)?;
    let runs = |part| only.is_none_or(|only| only == part);
    if runs("file") {
        file(&path, rounds, seconds)?;
    }
    if runs("lab") {
        lab(&extant.map_or_else(read::build, Ok)?, &path, rounds, seconds)?;
    }
    if runs("nbd") {
        nbd(&path, rounds)?;
    }
    std::fs::remove_file(&path)?;
    Ok(())
}

/// The device path and fio, alternating on the same file.
fn file(path: &Path, rounds: u64, seconds: u64) -> Result<()> {
    println!("| file | ours | fio | ratio | ours, CPU/IO (user + system) | fio, CPU/IO |");
    println!("|---|---|---|---|---|---|");
    for job in JOBS {
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        for round in 0..rounds {
            ours.push(run_ours(path, job, seconds, round)?);
            theirs.push(run_fio(path, job, seconds)?);
        }
        report(job, &ours, &theirs);
    }
    Ok(())
}

/// `extant lab run` and fio as whole commands with the same options, alternating on the same file;
/// the one that begins changes from round to round.
fn lab(extant: &Path, path: &Path, rounds: u64, seconds: u64) -> Result<()> {
    println!("| whole commands | lab run | fio | ratio (least to most) | CPU/IO, lab run | CPU/IO, fio |");
    println!("|---|---|---|---|---|---|");
    for job in &JOBS[..2] {
        let (mut rates, mut cpu) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for round in 0..rounds {
            for side in [round % 2, 1 - round % 2].map(|side| side as usize) {
                let mut program = Command::new(if side == 0 { extant } else { Path::new("fio") });
                if side == 0 {
                    program.args(["lab", "run"]);
                }
                let before = children_us()?;
                let range = 0..FILE_BYTES;
                let Job { bytes, depth, .. } = *job;
                let outcome =
                    fio::run_by(program, &fio::Job { path, rw: "randread", bytes, depth, range, seconds })?;
                let ios = outcome.iops * seconds as f64;
                rates[side].push(outcome.iops);
                cpu[side].push((children_us()? - before) / ios);
            }
        }
        let mut ratios: Vec<f64> = rates[0].iter().zip(&rates[1]).map(|(ours, fio)| ours / fio).collect();
        ratios.sort_by(f64::total_cmp);
        let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
        let [ours, theirs] = rates.map(median);
        let [our_cpu, their_cpu] = cpu.map(median);
        println!(
            "| {}, IOPS | {ours:.0} | {theirs:.0} | {:.3} ({least:.3} to {most:.3}) | {our_cpu:.2} µs | {their_cpu:.2} µs |",
            job.name,
            median(ratios),
        );
    }
    Ok(())
}

/// Processor time of all children that have ended, in microseconds.
fn children_us() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    Ok((usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64)
}

/// Kills the server on drop.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Compares the seconds that our client and an established tool take for the same work on the same
/// server.
fn nbd(path: &Path, rounds: u64) -> Result<()> {
    let socket = path.with_extension("sock");
    let _ = std::fs::remove_file(&socket);
    let uri = format!("nbd+unix:///?socket={}", std::path::absolute(&socket)?.display());
    let server = Command::new("nbdkit").args(["-f", "-U"]).arg(&socket).arg("file").arg(path).spawn()?;
    let _server = Server(server);
    while !socket.exists() {
        std::thread::yield_now();
    }
    println!("| NBD, nbdkit over a Unix socket | ours, s | theirs, s | ratio of rates |");
    println!("|---|---|---|---|");
    let copy = Job { name: "", op: Op::Read, random: false, bytes: 256 << 10, depth: 64 };
    let small = Job { name: "", op: Op::Read, random: false, bytes: 4096, depth: 32 };
    let writes = Job { name: "", op: Op::Write, random: false, bytes: 64 << 10, depth: 16 };
    let bench = |job: Job, count: u64, extra: &[&str]| {
        let mut command = Command::new("qemu-img");
        command.args(["bench", "-q", "-f", "raw", "-c", &count.to_string(), "-d", &job.depth.to_string()]);
        command.args(["-s", &job.bytes.to_string()]).args(extra).arg(&uri);
        command
    };
    let mut nbdcopy = Command::new("nbdcopy");
    nbdcopy.args(["--no-extents", &uri, "null:"]);
    let cases = [
        ("1 GiB read, against nbdcopy", copy, FILE_BYTES / copy.bytes, nbdcopy),
        ("100,000 reads of 4 KiB QD32, against qemu-img bench", small, 100_000, bench(small, 100_000, &[])),
        (
            "10,000 writes of 64 KiB QD16, against qemu-img bench",
            writes,
            10_000,
            bench(writes, 10_000, &["-w"]),
        ),
    ];
    let together = |device: &dyn Device, bios: Bios<'_>| device.submit_all(bios);
    for (name, job, count, mut theirs) in cases {
        let (mut ours, mut others) = (Vec::new(), Vec::new());
        let rt = Rt::real(RealConfig::default());
        for round in 0..rounds {
            let start = rt.now();
            let device = rt.block_on(NbdDevice::connect(&rt, &uri.parse()?, NbdOptions::default()))??;
            work(&rt, &device, job, Until::Count(count), round, together)?;
            drop(device);
            ours.push((rt.now() - start).as_secs_f64());
            let start = rt.now();
            if !theirs.stdout(Stdio::null()).status()?.success() {
                return Err(format!("{theirs:?} failed").into());
            }
            others.push((rt.now() - start).as_secs_f64());
        }
        let (ours, others) = (median(ours), median(others));
        println!("| {name} | {ours:.3} | {others:.3} | {:.3} |", others / ours);
    }
    Ok(())
}

fn report(job: Job, ours: &[Outcome], theirs: &[Outcome]) {
    let of = |outcomes: &[Outcome], pick: fn(&Outcome) -> f64| median(outcomes.iter().map(pick).collect());
    let cpu = |outcomes: &[Outcome]| {
        let user = of(outcomes, |o| o.cpu_us_per_io[0]);
        let system = of(outcomes, |o| o.cpu_us_per_io[1]);
        format!("{:.2} ({user:.2} + {system:.2}) µs", of(outcomes, |o| o.cpu_us_per_io.iter().sum()))
    };
    let cpu = [cpu(ours), cpu(theirs)];
    let (what, ours, theirs) = if job.depth == 1 {
        ("mean µs", of(ours, |o| o.latency_us), of(theirs, |o| o.latency_us))
    } else {
        ("IOPS", of(ours, |o| o.iops), of(theirs, |o| o.iops))
    };
    println!(
        "| {}, {what} | {ours:.1} | {theirs:.1} | {:.3} | {} | {} |",
        job.name,
        ours / theirs,
        cpu[0],
        cpu[1]
    );
}

/// Processor time of this process in ticks of 10 ms, in user and in kernel mode (proc(5),
/// `USER_HZ`).
fn cpu_times() -> Result<[u64; 2]> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The second field, the name in parentheses, may contain spaces; the times are fields 14 and
    // 15.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = rest.split_whitespace().skip(11);
    let mut next = || fields.next().ok_or("no times in /proc/self/stat");
    Ok([next()?.parse()?, next()?.parse()?])
}

fn cpu_us_per_io(before: [u64; 2], after: [u64; 2], ios: u64) -> [f64; 2] {
    [0, 1].map(|mode| (after[mode] - before[mode]) as f64 * 1e4 / ios as f64)
}

/// A file without holes.
fn fill(path: &Path) -> Result<()> {
    let mut file = std::fs::File::create(path)?;
    let mut rng = Rng::new(1);
    let mut chunk = vec![0; 1 << 20];
    for _ in 0..FILE_BYTES >> 20 {
        chunk.chunks_mut(8).for_each(|word| word.copy_from_slice(&rng.next_u64().to_le_bytes()));
        file.write_all(&chunk)?;
    }
    file.sync_all()?;
    Ok(())
}

/// Completed bios, for a single thread that waits for any of them.
#[derive(Default)]
struct Inbox {
    ended: Vec<(Bio, Option<IoError>)>,
    waker: Option<Waker>,
}

fn send(inbox: &Arc<Mutex<Inbox>>, mut bio: Bio) -> Bio {
    let inbox = inbox.clone();
    bio.on_end(Box::new(move |bio, result| {
        let mut inbox = inbox.lock();
        inbox.ended.push((bio, result.err()));
        let waker = inbox.waker.take();
        drop(inbox);
        if let Some(waker) = waker {
            waker.wake();
        }
    }));
    bio
}

fn run_ours(path: &Path, job: Job, seconds: u64, round: u64) -> Result<Outcome> {
    let rt = Rt::real(RealConfig::default());
    let device = FileDevice::open(path, FileOptions { write: true, direct: true })?.driven_by(&rt);
    if device.engine() != "io_uring" || !device.is_direct() {
        return Err(format!("{} gives no direct I/O over io_uring to compare", path.display()).into());
    }
    let before = cpu_times()?;
    // Start bios one by one, like fio: bios that are started together end together, and the disk
    // would idle in between.
    let one_by_one = |device: &dyn Device, bios: Bios<'_>| bios.for_each(|bio| device.submit(bio));
    let (count, span, latency) = work(&rt, &device, job, Until::Seconds(seconds), round, one_by_one)?;
    Ok(Outcome {
        iops: count as f64 / span.as_secs_f64(),
        latency_us: latency.0 as f64 / count as f64 / 1e3,
        cpu_us_per_io: cpu_us_per_io(before, cpu_times()?, count),
    })
}

type Bios<'a> = &'a mut dyn Iterator<Item = Bio>;

/// Runs the job. Returns the number of completed bios, the time taken, and the sum of the
/// latencies. Each batch of completed bios is replaced by as many new ones, started by `submit`.
fn work(
    rt: &Rt,
    device: &dyn Device,
    job: Job,
    until: Until,
    round: u64,
    submit: impl Fn(&dyn Device, Bios<'_>),
) -> Result<(u64, Nanos, Nanos)> {
    let mut rng = Rng::new(round);
    let blocks = FILE_BYTES / job.bytes;
    let mut next = 0;
    let mut place = || {
        let block = if job.random { rng.below(blocks) } else { next % blocks };
        next += 1;
        Sector(block * (job.bytes / Sector::BYTES))
    };
    let inbox = Arc::new(Mutex::new(Inbox::default()));
    let start = rt.now();
    let mut submitted = vec![start; job.depth];
    let mut first = (0..job.depth).map(|slot| {
        let mut bio = Bio::new(job.op, place(), vec![Buf::zeroed(job.bytes as usize).into()]);
        // The stream number is the slot, to find when this one was submitted.
        bio.stream = StreamId(slot as u64);
        send(&inbox, bio)
    });
    submit(device, &mut first);
    let (mut started, mut ended, mut latency) = (job.depth as u64, 0, Nanos::ZERO);
    let mut batch = Vec::new();
    while ended < started {
        rt.block_on(std::future::poll_fn(|cx| {
            let mut inbox = inbox.lock();
            if inbox.ended.is_empty() {
                inbox.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            std::mem::swap(&mut batch, &mut inbox.ended);
            Poll::Ready(())
        }))?;
        let now = rt.now();
        if let Some(error) = batch.iter_mut().find_map(|(_, error)| error.take()) {
            return Err(error.into());
        }
        let mut next = batch.drain(..).filter_map(|(mut bio, _)| {
            let slot = bio.stream.0 as usize;
            latency += now - submitted[slot];
            ended += 1;
            let go_on = match until {
                Until::Seconds(seconds) => now - start < Nanos::from_secs(seconds),
                Until::Count(count) => started < count,
            };
            go_on.then(|| {
                bio.start = place();
                submitted[slot] = now;
                started += 1;
                send(&inbox, bio)
            })
        });
        submit(device, &mut next);
    }
    Ok((ended, rt.now() - start, latency))
}

fn run_fio(path: &Path, job: Job, seconds: u64) -> Result<Outcome> {
    let rw = match (job.op, job.random) {
        (Op::Read, true) => "randread",
        _ => "write",
    };
    let Job { bytes, depth, .. } = job;
    fio::run(&fio::Job { path, rw, bytes, depth, range: 0..FILE_BYTES, seconds })
}
