//! The options of a job.

use super::units::{bytes, count, flag, time};
use super::without_effect::has_no_effect;
use extant_rt::Nanos;

/// Direction and order of a job's I/O (`rw`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pattern {
    /// Includes reads.
    pub reads: bool,
    /// Includes writes.
    pub writes: bool,
    /// Offsets are random.
    pub random: bool,
}

impl Pattern {
    /// The name in fio's syntax.
    pub fn name(self) -> &'static str {
        match (self.random, self.reads, self.writes) {
            (false, _, false) => "read",
            (false, false, true) => "write",
            (false, true, true) => "rw",
            (true, _, false) => "randread",
            (true, false, true) => "randwrite",
            (true, true, true) => "randrw",
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (reads, writes, random) = match text {
            "read" => (true, false, false),
            "write" => (false, true, false),
            "rw" | "readwrite" => (true, true, false),
            "randread" => (true, false, true),
            "randwrite" => (false, true, true),
            "randrw" => (true, true, true),
            _ => {
                let known = "read, write, rw, randread, randwrite, randrw";
                return Err(format!("\"{text}\" is not a pattern; known are {known}"));
            }
        };
        Ok(Self { reads, writes, random })
    }
}

/// How a process submits I/O (`ioengine`). Here, engines differ only in how many requests they may
/// have in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// One at a time, whatever `iodepth` says: `sync`, `psync`, `vsync`, `pvsync`, `pvsync2`.
    Sync(&'static str),
    /// `iodepth` at a time: `libaio`, `io_uring`, `posixaio`.
    Async(&'static str),
}

impl Engine {
    /// fio's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sync(name) | Self::Async(name) => name,
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        const SYNC: [&str; 5] = ["sync", "psync", "vsync", "pvsync", "pvsync2"];
        const ASYNC: [&str; 3] = ["libaio", "io_uring", "posixaio"];
        let sync = SYNC.into_iter().find(|name| *name == text).map(Self::Sync);
        sync.or(ASYNC.into_iter().find(|name| *name == text).map(Self::Async)).ok_or_else(|| {
            format!("\"{text}\" is not an engine; known are {}, {}", SYNC.join(", "), ASYNC.join(", "))
        })
    }
}

/// The size of a job's files as given (`size`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// A size in bytes; 0 if not given.
    Bytes(u64),
    /// A percentage of the file or device.
    Percent(u8),
}

/// Whether each write is durable when it completes (`sync`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Not durable.
    #[default]
    None,
    /// `O_DSYNC`.
    Data,
    /// `O_SYNC`; the same as `O_DSYNC` for a file that is a single extent of its disk.
    Each,
}

/// What a process tells the kernel about its file when it opens it (`fadvise_hint`,
/// `posix_fadvise(2)`). Only for files in the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Advice {
    /// No advice. This is the default here, since the cache detects how a file is read; fio's
    /// default is [`Self::Order`].
    #[default]
    None,
    /// Whether the job reads in sequence or at random.
    Order,
    /// The file will be read in sequence, even if the job does not.
    Sequential,
    /// The file will be read at random, even if the job does not.
    Random,
    /// Each byte will be read only once (`POSIX_FADV_NOREUSE`). Linux before 6.3 ignores this, as
    /// does this cache.
    NoReuse,
    /// The job's part of the file will be read soon. Not an option of fio's.
    WillNeed,
    /// The job's part of the file is not needed in memory. Not an option of fio's.
    DontNeed,
}

impl Advice {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(match text {
            "0" | "none" => Self::None,
            "" | "1" | "pattern" => Self::Order,
            "sequential" => Self::Sequential,
            "random" => Self::Random,
            "noreuse" => Self::NoReuse,
            "willneed" => Self::WillNeed,
            "dontneed" => Self::DontNeed,
            _ => {
                let known = "0, 1, none, pattern, sequential, random, noreuse, willneed, dontneed";
                return Err(format!("\"{text}\" is not a hint; known are {known}"));
            }
        })
    }
}

/// Why a key was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The key is unknown.
    Unknown,
    /// The value is invalid, or the key is not supported.
    Because(String),
}

impl From<String> for Refused {
    fn from(problem: String) -> Self {
        Self::Because(problem)
    }
}

/// A job: one section of a job file, including the options of the global section.
#[derive(Clone, Debug)]
pub struct Job {
    /// Section name.
    pub name: String,
    /// Direction and order.
    pub pattern: Pattern,
    /// Size of one I/O in bytes.
    pub block_bytes: u64,
    /// Amount that each process transfers, and the span of the file in which it does so.
    pub size: Size,
    /// Amount to transfer, if it differs from the span; 0 if not given.
    pub io_bytes: u64,
    /// How many times to repeat the whole transfer.
    pub loops: u64,
    /// I/Os after which a process ends; 0 if not given.
    pub ios: u64,
    /// Length of the file; 0 if not given.
    pub file_size_bytes: u64,
    /// Offset of the first process's span in the file.
    pub offset_bytes: u64,
    /// Distance between the spans of consecutive processes.
    pub offset_increment_bytes: u64,
    /// I/Os that an asynchronous engine keeps in flight.
    pub depth: u32,
    /// Number of identical processes.
    pub processes: u32,
    /// Pause after every [`Job::think_blocks`] I/Os.
    pub think: Nanos,
    /// See [`Job::think`].
    pub think_blocks: u64,
    /// No I/O starts after this time.
    pub runtime: Option<Nanos>,
    /// I/O during this time is not counted.
    pub ramp: Nanos,
    /// Keep going until the runtime ends, starting over if necessary.
    pub time_based: bool,
    /// Bypass the page cache.
    pub direct: bool,
    /// Flush before the next I/O after this many writes; 0 for never.
    pub fsync: u64,
    /// Likewise with `fdatasync(2)`, which is the same for a file that is a single extent of its
    /// disk.
    pub fdatasync: u64,
    /// After this many writes, write back the range written since the last time
    /// (`sync_file_range(2)`); 0 for never.
    pub sync_range: u64,
    /// Whether `sync_file_range` waits for the write-back.
    pub sync_range_waits: bool,
    /// Drop the file's cached pages before the process starts.
    pub invalidate: bool,
    /// What the process tells about the file when it opens it.
    pub advice: Advice,
    /// Flush at the end.
    pub end_fsync: bool,
    /// Whether each write is durable when it completes.
    pub durability: Durability,
    /// Limit per process in bytes per second, for reads and writes separately; 0 for none.
    pub rate_bytes_s: u64,
    /// The same limit in I/Os per second.
    pub rate_iops: u64,
    /// Percentage of reads in a mix.
    pub read_percent: u64,
    /// The file to use; if not given, a name derived from the job's.
    pub filename: Option<String>,
    /// Directory of files whose names do not include one.
    pub directory: Option<String>,
    /// One report for all processes of a group.
    pub group_reporting: bool,
    /// Starts when all earlier jobs have ended, and starts a new group.
    pub stonewall: bool,
    /// Starts a new group.
    pub new_group: bool,
    /// Pause before the first I/O.
    pub start_delay: Nanos,
    /// Random offsets may repeat before every block has been visited.
    pub repeats: bool,
    /// I/O priority level, 0 to 7.
    pub priority: u8,
    /// I/O class: 0 for none, 1 for real time, 2 for best effort, 3 for idle.
    pub priority_class: u8,
    /// Seed of this job's randomness, combined with the run's.
    pub seed: u64,
    /// The I/O engine.
    pub engine: Engine,
    /// Keys that were given but have no effect here.
    pub without_effect: Vec<String>,
    /// Keys and values as given, for the report.
    pub given: Vec<(String, String)>,
}

impl Default for Job {
    fn default() -> Self {
        Self {
            name: String::new(),
            pattern: Pattern { reads: true, writes: false, random: false },
            block_bytes: 4096,
            size: Size::Bytes(0),
            io_bytes: 0,
            loops: 1,
            ios: 0,
            file_size_bytes: 0,
            offset_bytes: 0,
            offset_increment_bytes: 0,
            depth: 1,
            processes: 1,
            think: Nanos::ZERO,
            think_blocks: 1,
            runtime: None,
            ramp: Nanos::ZERO,
            time_based: false,
            direct: false,
            fsync: 0,
            fdatasync: 0,
            sync_range: 0,
            sync_range_waits: false,
            invalidate: true,
            advice: Advice::None,
            end_fsync: false,
            durability: Durability::None,
            rate_bytes_s: 0,
            rate_iops: 0,
            read_percent: 50,
            filename: None,
            directory: None,
            group_reporting: false,
            stonewall: false,
            new_group: false,
            start_delay: Nanos::ZERO,
            repeats: false,
            priority: 4,
            priority_class: 0,
            seed: 0,
            engine: Engine::Sync("psync"),
            without_effect: Vec::new(),
            given: Vec::new(),
        }
    }
}

/// The known keys, listed in the error message for an unknown one.
pub const KEYS: &str = "bs, bsrange, buffered, direct, directory, end_fsync, fadvise_hint, fdatasync, filename, filesize, fsync, fsync_on_close, group_reporting, \
    invalidate, io_size, iodepth, ioengine, loops, name, \
    new_group, norandommap, number_ios, numjobs, offset, offset_increment, prio, prioclass, ramp_time, randseed, rate, rate_iops, runtime, rw, rwmixread, \
    rwmixwrite, size, startdelay, stonewall, sync, sync_file_range, thinktime, thinktime_blocks, time_based";

impl Job {
    /// Applies one key.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Result<(), Refused> {
        match has_no_effect(key, value) {
            None => self.set_known(key, value)?,
            Some(true) => {
                self.without_effect.retain(|known| known != key);
                self.without_effect.push(key.to_owned());
            }
            Some(false) => {
                return Err(Refused::Because(format!(
                    "\"{value}\" would change what the job does, and is not supported"
                )));
            }
        }
        self.given.retain(|(known, _)| known != key);
        // fio does not report flags without a value either.
        if !value.is_empty() {
            self.given.push((key.to_owned(), value.to_owned()));
        }
        Ok(())
    }

    /// Changes a key's value, and returns an error if the key or the resulting job is invalid.
    pub(super) fn change(&mut self, key: &str, value: &str) -> Result<(), String> {
        match self.set(key, value) {
            Ok(()) => self.contradiction().map_or(Ok(()), Err),
            Err(Refused::Unknown) => Err(format!("unknown key \"{key}\"; known are {KEYS}")),
            Err(Refused::Because(problem)) => Err(problem),
        }
    }

    fn set_known(&mut self, key: &str, value: &str) -> Result<(), Refused> {
        match key {
            "rw" | "readwrite" => self.pattern = Pattern::parse(value)?,
            "bs" | "blocksize" => self.block_bytes = above_zero(bytes(alike(value)?)?)?,
            "bsrange" | "blocksize_range" => {
                self.block_bytes = above_zero(bytes(one_length(alike(value)?)?)?)?
            }
            "size" => self.size = size(value)?,
            "io_size" | "io_limit" => self.io_bytes = bytes(value)?,
            "loops" => self.loops = above_zero(count(value)?)?,
            "filesize" => self.file_size_bytes = bytes(value)?,
            "number_ios" => self.ios = count(value)?,
            "offset" => self.offset_bytes = bytes(value)?,
            "offset_increment" => self.offset_increment_bytes = bytes(value)?,
            "iodepth" => self.depth = above_zero(small(value)?)?,
            "numjobs" => self.processes = above_zero(small(value)?)?,
            "thinktime" => self.think = time(value, "us")?,
            "thinktime_blocks" => self.think_blocks = above_zero(count(value)?)?,
            "runtime" | "timeout" => self.runtime = Some(time(value, "s")?).filter(|t| *t > Nanos::ZERO),
            "ramp_time" => self.ramp = time(value, "s")?,
            "time_based" => self.time_based = flag(value)?,
            "direct" => self.direct = flag(value)?,
            "fsync" => self.fsync = count(value)?,
            "fdatasync" => self.fdatasync = count(value)?,
            "sync_file_range" => (self.sync_range_waits, self.sync_range) = range_sync(value)?,
            "invalidate" => self.invalidate = flag(value)?,
            "fadvise_hint" => self.advice = Advice::parse(value)?,
            "buffered" => self.direct = !flag(value)?,
            "end_fsync" | "fsync_on_close" => self.end_fsync = flag(value)?,
            "rate" => self.rate_bytes_s = bytes(alike(value)?)?,
            "rate_iops" => self.rate_iops = count(alike(value)?)?,
            "rwmixread" => self.read_percent = within(value, 100)?.into(),
            "rwmixwrite" => self.read_percent = 100 - u64::from(within(value, 100)?),
            "sync" => self.durability = durability(value)?,
            "filename" if value.contains(':') => {
                return Err(Refused::Because(
                    "several files in one job are not supported; write a job for each".into(),
                ));
            }
            "filename" => self.filename = Some(value.to_owned()),
            "directory" => self.directory = Some(value.to_owned()),
            "group_reporting" => self.group_reporting = flag(value)?,
            "stonewall" | "wait_for_previous" => self.stonewall = flag(value)?,
            "new_group" => self.new_group = flag(value)?,
            "startdelay" => self.start_delay = time(value, "s")?,
            "norandommap" => self.repeats = flag(value)?,
            "prio" => self.priority = within(value, 7)?,
            "prioclass" => self.priority_class = within(value, 3)?,
            "randseed" => self.seed = count(value)?,
            "ioengine" => self.engine = Engine::parse(value)?,
            "name" => self.name = value.to_owned(),
            "ioscheduler" => {
                return Err(Refused::Because(
                    "the disks' elevator is chosen by --elevator, before the jobs".into(),
                ));
            }
            _ => return Err(Refused::Unknown),
        }
        Ok(())
    }

    /// Describes the first conflict between keys, if any.
    pub(super) fn contradiction(&self) -> Option<String> {
        if self.time_based && self.runtime.is_none() {
            return Some("time_based without a runtime never ends; add runtime=".into());
        }
        if let Size::Bytes(size @ 1..) = self.size
            && size < self.block_bytes
        {
            return Some(format!("size={size} is less than one block of {}", self.block_bytes));
        }
        if self.end_bytes().is_none_or(|end| end > MOST_FILE_BYTES) {
            return Some("offset and size end beyond what a file can have (8 EiB)".into());
        }
        if self.block_bytes.saturating_mul(self.effective_depth().into()) > MOST_BUFFER_BYTES {
            return Some("bs times iodepth is more than 16 GiB of memory".into());
        }
        let is_whole = |bytes: u64| bytes.is_multiple_of(512);
        let offsets = [self.offset_bytes, self.offset_increment_bytes];
        if self.direct && !(is_whole(self.block_bytes) && offsets.into_iter().all(is_whole)) {
            return Some("with direct=1, bs and offset must be multiples of 512".into());
        }
        None
    }

    /// File length requested from the offset on, in bytes; 0 if the job takes the file, or a
    /// percentage of it, as it is.
    pub fn size_bytes(&self) -> u64 {
        match self.size {
            Size::Bytes(0) => self.file_size_bytes.saturating_sub(self.offset_bytes),
            Size::Bytes(bytes) => bytes,
            Size::Percent(_) => 0,
        }
    }

    /// Offset of a process's span in the file.
    pub fn offset_of(&self, process: u32) -> u64 {
        self.offset_bytes.saturating_add(self.offset_increment_bytes.saturating_mul(process.into()))
    }

    /// Where the span of the last process ends; `None` if no file can be that long.
    fn end_bytes(&self) -> Option<u64> {
        let apart = self.offset_increment_bytes.checked_mul(u64::from(self.processes.max(1)) - 1)?;
        let end = self.offset_bytes.checked_add(apart)?.checked_add(self.size_bytes())?;
        Some(end.max(self.file_size_bytes))
    }

    /// Length of the file that the job needs; 0 if it takes the file as it is.
    pub fn file_bytes(&self) -> u64 {
        if self.size_bytes() == 0 { 0 } else { self.end_bytes().unwrap_or(u64::MAX) }
    }

    /// Limit per process in bytes per second, for reads and writes separately, if there is one.
    pub fn limit_bytes_s(&self) -> Option<u64> {
        let by_ios = Some(self.rate_iops.saturating_mul(self.block_bytes)).filter(|limit| *limit > 0);
        let by_bytes = Some(self.rate_bytes_s).filter(|limit| *limit > 0);
        by_ios.into_iter().chain(by_bytes).min()
    }

    /// Whether I/Os run while the process goes on. Linux's `libaio` does this only for direct I/O.
    pub fn is_asynchronous(&self) -> bool {
        match self.engine {
            Engine::Sync(_) => false,
            Engine::Async(name) => self.direct || name != "libaio",
        }
    }

    /// Maximum number of I/Os that a process keeps in flight.
    pub fn effective_depth(&self) -> u32 {
        match self.engine {
            Engine::Sync(_) => 1,
            Engine::Async(_) => self.depth,
        }
    }

    /// Length of the job's span, given that its file has `rest_bytes` from the offset on.
    pub fn span_bytes(&self, rest_bytes: u64) -> u64 {
        match self.size_bytes() {
            0 => match self.size {
                Size::Percent(percent) => (u128::from(rest_bytes) * u128::from(percent) / 100) as u64,
                Size::Bytes(_) => rest_bytes,
            },
            size if self.pattern.random => size.min(rest_bytes),
            // The last block may extend past the size, but not past the end of the file.
            size => size.next_multiple_of(self.block_bytes).min(rest_bytes),
        }
    }

    /// Number of blocks that a process transfers if its span has this length.
    pub fn wanted_blocks(&self, span_bytes: u64) -> u64 {
        let blocks = span_bytes / self.block_bytes;
        let once = match (self.io_bytes, self.size_bytes()) {
            (0, 0) => blocks,
            (0, size) if self.pattern.random && self.repeats => size.div_ceil(self.block_bytes),
            (0, size) => blocks.max(size / self.block_bytes),
            (wanted, _) => wanted.div_ceil(self.block_bytes),
        };
        let all = once.saturating_mul(self.loops);
        if self.ios > 0 { all.min(self.ios) } else { all }
    }

    /// Whether the job syncs between writes.
    pub fn syncs(&self) -> bool {
        self.pattern.writes && (self.fsync, self.fdatasync, self.sync_range) != (0, 0, 0)
    }

    /// The sync call due before the next I/O, after `writes` writes. If several are due, the
    /// strongest, as in fio.
    pub fn sync_due(&self, writes: u64) -> Option<SyncCall> {
        let due = |every: u64| every > 0 && writes > 0 && writes.is_multiple_of(every);
        if due(self.fsync) {
            Some(SyncCall::Whole)
        } else if due(self.fdatasync) {
            Some(SyncCall::Data)
        } else {
            due(self.sync_range).then_some(SyncCall::Range)
        }
    }

    /// The file of a process, as fio names it.
    pub fn file_of(&self, process: u32) -> String {
        let name = match &self.filename {
            Some(name) => name.clone(),
            None => format!("{}.{process}.0", self.name),
        };
        match &self.directory {
            Some(directory) => format!("{directory}/{name}"),
            None => name,
        }
    }
}

/// How a job makes its writes durable, or starts their write-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncCall {
    /// `fsync(2)`.
    Whole,
    /// `fdatasync(2)`.
    Data,
    /// `sync_file_range(2)` of what was written since the last call.
    Range,
}

/// Parses `sync_file_range=FLAGS:N`: whether to wait, and after how many writes to call it.
fn range_sync(text: &str) -> Result<(bool, u64), String> {
    let wrong = || {
        format!(
            "\"{text}\" is not FLAGS:N with FLAGS one or more of wait_before, write, wait_after, such as write,wait_after:8"
        )
    };
    let (flags, writes) = text.split_once(':').ok_or_else(wrong)?;
    let mut waits = false;
    for flag in flags.split(',') {
        match flag {
            "wait_before" | "wait_after" => waits = true,
            "write" => {}
            _ => return Err(wrong()),
        }
    }
    if !flags.split(',').any(|flag| flag == "write") {
        return Err("without \"write\" among its flags nothing is written back; add it".into());
    }
    Ok((waits, count(writes)?))
}

/// Parses an option that takes values for reads, writes and trims. Returns the value for reads,
/// which must be equal to that for writes.
fn alike(text: &str) -> Result<&str, String> {
    let mut values = text.split(',');
    let first = values.next().unwrap_or(text);
    match values.next() {
        Some(second) if !second.is_empty() && second != first => {
            Err(format!("\"{text}\": different values for reads and writes are not supported"))
        }
        _ => Ok(first),
    }
}

/// Parses a range of lengths whose ends are equal; returns that length.
fn one_length(text: &str) -> Result<&str, String> {
    match text.split_once('-') {
        Some((least, most)) if bytes(least)? != bytes(most)? => {
            Err(format!("\"{text}\": blocks of several lengths are not supported; give bs"))
        }
        Some((least, _)) => Ok(least),
        None => Err(format!("\"{text}\" is not LEAST-MOST, such as 4k-4k")),
    }
}

/// Parses `size=BYTES` or `size=N%`.
fn size(text: &str) -> Result<Size, String> {
    match text.strip_suffix('%') {
        None => Ok(Size::Bytes(bytes(text)?)),
        Some(percent) => within(percent, 100).and_then(above_zero).map(Size::Percent),
    }
}

/// Parses `sync=none`, `sync`, `dsync`, or 0 and 1.
fn durability(text: &str) -> Result<Durability, String> {
    match text {
        "0" | "none" => Ok(Durability::None),
        "dsync" => Ok(Durability::Data),
        "" | "1" | "sync" => Ok(Durability::Each),
        _ => Err(format!("\"{text}\" is not one of none, sync, dsync, 0, 1")),
    }
}

/// The largest file offset (`off_t`).
const MOST_FILE_BYTES: u64 = i64::MAX as u64;
/// A job that asks for more memory than this is taken for a mistake.
const MOST_BUFFER_BYTES: u64 = 16 << 30;

fn above_zero<T: Default + PartialEq>(value: T) -> Result<T, String> {
    if value == T::default() { Err("must be above 0".into()) } else { Ok(value) }
}

fn small(text: &str) -> Result<u32, String> {
    let n = count(text)?;
    u32::try_from(n).ok().filter(|n| *n <= 1 << 20).ok_or_else(|| format!("{n} is too many"))
}

fn within(text: &str, most: u8) -> Result<u8, String> {
    let n = count(text)?;
    if n <= u64::from(most) { Ok(n as u8) } else { Err(format!("{n} is not between 0 and {most}")) }
}
