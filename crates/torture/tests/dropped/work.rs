//! Tasks whose operations are cancelled at any moment by dropping their futures.

use crate::promises::{History, Step};
use extant_block::Buf;
use extant_fs::{Caller, Error, Fallocate, FileOptions, OpenFile, RenameMode, SetMode, SmallFile, Volume};
use extant_rt::{Nanos, Rng, Rt};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

/// Parameters of a task.
#[derive(Clone)]
pub(crate) struct Orders {
    pub(crate) rt: Rt,
    pub(crate) volume: Volume,
    pub(crate) steps: u64,
    /// Whether the volume's files use extents.
    pub(crate) has_extents: bool,
    /// How long work may continue after its caller has left.
    pub(crate) settles_within: Nanos,
    /// Number of events in the device's log so far.
    pub(crate) position: Arc<dyn Fn() -> usize + Send + Sync>,
}

/// Runs `op`, but drops it after this time; then returns `None`.
async fn cut<T>(rt: &Rt, after: Option<Nanos>, op: impl Future<Output = T>) -> Option<T> {
    let mut op = pin!(op);
    let mut sleep = after.map(|after| Box::pin(rt.sleep(after)));
    poll_fn(|cx| {
        if let Poll::Ready(done) = op.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        match &mut sleep {
            Some(sleep) => sleep.as_mut().poll(cx).map(|()| None),
            None => Poll::Pending,
        }
    })
    .await
}

/// When to cancel an operation, if at all.
fn when(rng: &mut Rng) -> Option<Nanos> {
    match rng.below(10) {
        0..=2 => None,
        3..=6 => Some(Nanos::from_micros(rng.below(300))),
        7..=8 => Some(Nanos::from_micros(rng.below(1_500))),
        _ => Some(Nanos::from_micros(rng.below(8_000))),
    }
}

fn name(rng: &mut Rng) -> Vec<u8> {
    let tail = if rng.below(4) == 0 { "x".repeat(100) } else { String::new() };
    format!("n{}{tail}", rng.below(6)).into_bytes()
}

/// Creates, moves and removes a few names shared with other such tasks; any error is accepted.
pub(crate) async fn names(orders: Orders, mut rng: Rng) {
    let Orders { rt, volume, steps, .. } = orders;
    let caller = Caller::root();
    // Fails on a failing device.
    let Ok(root) = volume.root_node().await else { return };
    for _ in 0..steps {
        let (a, b) = (name(&mut rng), name(&mut rng));
        let after = when(&mut rng);
        let (kind, at) = (rng.below(16), rng.below(60_000));
        let value = vec![7; 1 + rng.below(2_500) as usize];
        let op = async {
            match kind {
                0 | 1 => root.create(&caller, &a, 0o644).await.map(drop),
                2 => root.mkdir(&caller, &a, 0o755).await.map(drop),
                3 => root.unlink(&caller, &a).await,
                4 => root.rmdir(&caller, &a).await,
                5 => root.rename(&caller, &a, &root, &b, RenameMode::default()).await,
                6 => root.link(&caller, &root.lookup(&caller, &a).await?, &b).await,
                7 => root.symlink(&caller, &a, &vec![b'q'; 1 + value.len() % 900]).await.map(drop),
                8 | 9 => {
                    let node = root.lookup(&caller, &a).await?;
                    node.set_xattr(&caller, b"user.v", &value, SetMode::Any).await
                }
                10 => root.lookup(&caller, &a).await?.remove_xattr(&caller, b"user.v").await,
                11 => root.create_unnamed(&caller, 0o600).await.map(drop),
                12 => {
                    let node = root.lookup(&caller, &a).await?;
                    node.open(&caller, FileOptions::default())?.write(at, &value).await.map(drop)
                }
                13 => {
                    let node = root.lookup(&caller, &a).await?;
                    node.open(&caller, FileOptions::default())?.empty().await
                }
                _ => {
                    let mut small = volume.small_files(&caller)?;
                    let (accessed, modified) = Default::default();
                    let contents = &value;
                    let file = SmallFile { permissions: 0o644, uid: 0, gid: 0, accessed, modified, contents };
                    small.add(&root, &a, &file).await?;
                    small.add(&root, &b, &file).await?;
                    small.make().await.map_err(Error::from)
                }
            }
        };
        cut(&rt, after, op).await;
    }
}

/// Reads the whole file; each byte must be as before or after the operation.
async fn read(file: &OpenFile, old: &[u8], new: &[u8], what: &(dyn Fn() -> String + Sync)) -> Vec<u8> {
    let mut found = vec![0; file.size() as usize + 10];
    let read = file.read(0, &mut found).await.unwrap_or_else(|error| panic!("{}: {error}", what()));
    assert_eq!(read, file.size() as usize, "{}", what());
    found.truncate(read);
    let between = old.len().min(new.len())..=old.len().max(new.len());
    assert!(between.contains(&read), "{}: {read} bytes, not {between:?}", what());
    let byte = |bytes: &[u8], at: usize| bytes.get(at).copied().unwrap_or(0);
    for (at, &found) in found.iter().enumerate() {
        let (old, new) = (byte(old, at), byte(new, at));
        assert!(
            found == old || found == new,
            "{}: byte {at} of {read} is {found}, not {old} or {new}",
            what()
        );
    }
    found
}

/// An operation on a file: where, how much, and what is written.
#[derive(Clone, Copy, Debug)]
struct Op {
    kind: u64,
    at: usize,
    len: usize,
    fill: u8,
}

impl Op {
    fn random(rng: &mut Rng) -> Self {
        let unit = if rng.below(2) == 0 { 1024 } else { 1 };
        let mut at = (rng.below(40_000) / unit * unit) as usize;
        let mut len = (1 + rng.below(20_000)).next_multiple_of(unit) as usize;
        let (fill, kind) = (rng.below(255) as u8 + 1, rng.below(12));
        if matches!(kind, 4 | 5) {
            (at, len) = (at / 1024 * 1024, len.next_multiple_of(1024));
        }
        Self { kind, at, len, fill }
    }

    fn writes(self) -> bool {
        self.kind <= 5
    }

    /// Whether the operation continues, to its end or to another stopping point, after its caller
    /// has left.
    fn goes_on(self) -> bool {
        matches!(self.kind, 4..=8 | 11)
    }

    /// The file's contents after it.
    fn after(self, before: &[u8]) -> Vec<u8> {
        let mut after = before.to_vec();
        match self.kind {
            0..=5 => {
                after.resize(after.len().max(self.at + self.len), 0);
                after[self.at..self.at + self.len].fill(self.fill);
            }
            6 => after.resize(self.at, 0),
            7 => {
                let end = after.len().min(self.at + self.len);
                if self.at < end {
                    after[self.at..end].fill(0);
                }
            }
            _ => {}
        }
        after
    }

    /// Returns whether all of it was done: a write to a failing device may be done in part.
    async fn run(self, file: &OpenFile, has_extents: bool) -> Result<bool, Error> {
        let (at, len) = (self.at as u64, self.len as u64);
        let data = || vec![self.fill; self.len];
        match self.kind {
            0..=3 => return Ok(file.write(at, &data()).await? == self.len),
            4 | 5 => return Ok(file.write_direct(at, Buf::from_slice(&data())).await.1? == self.len),
            6 => file.set_size(at).await?,
            7 => file.fallocate(Fallocate::PunchHole, at, len).await?,
            8 if has_extents => file.fallocate(Fallocate::Allocate { keep_size: true }, at, len).await?,
            9 => file.read_direct(at / 1024 * 1024, Buf::zeroed(8192)).await.1.map(drop)?,
            10 => file.sync().await?,
            11 if has_extents => file.defragment().await.map(drop)?,
            _ => file.read(at, &mut vec![0; self.len]).await.map(drop)?,
        }
        Ok(true)
    }
}

/// Changes its own file, and reads it after each change. Returns the history and the final
/// contents.
pub(crate) async fn data(orders: Orders, name: String, mut rng: Rng) -> (History, Vec<u8>) {
    let caller = Caller::root();
    let root = orders.volume.root_node().await.expect("the device is healthy");
    let node = root.create(&caller, name.as_bytes(), 0o644).await.expect("there is space");
    let options = FileOptions { sync: rng.below(5) == 0, ..FileOptions::default() };
    let file = node.open(&caller, options).expect("a regular file");
    let mut model = Vec::new();
    let mut history = History::new(&name);
    let mut words: Vec<String> = Vec::new();
    for step in 0..orders.steps {
        let (after, op) = (when(&mut rng), Op::random(&mut rng));
        let new = op.after(&model);
        let began = (orders.position)();
        let done = cut(&orders.rt, after, op.run(&file, orders.has_extents)).await;
        words.push(format!("{step}: {op:?}: {done:?}, cut {after:?}, size {}", file.size()));
        let what = || format!("{name}: {}", words[words.len().saturating_sub(6)..].join("\n"));
        let is_synced = matches!((op.kind, &done), (10, Some(Ok(true))));
        // Read the position before more of the operation reaches the device.
        let ended = (orders.position)();
        model = match done {
            Some(Ok(is_whole)) => {
                assert!(is_whole, "{}", what());
                read(&file, &new, &new, &what).await
            }
            Some(Err(Error::NoSpace | Error::NotSupported(_))) | None => {
                if op.goes_on() || !op.writes() {
                    orders.rt.sleep(orders.settles_within).await;
                }
                read(&file, &model, &new, &what).await
            }
            Some(Err(error)) => panic!("{}: {error}", what()),
        };
        let op = format!("{op:?}");
        history.add(Step { began, ended, op, is_synced, new, after: model.clone() });
    }
    file.sync().await.expect("nothing failed");
    let ended = (orders.position)();
    let model = read(&file, &model, &model, &|| format!("{name}: at the end")).await;
    let (op, new) = ("the end".into(), model.clone());
    history.add(Step { began: ended, ended, op, is_synced: true, new, after: model.clone() });
    (history, model)
}

/// Changes its own file on a failing device. Returns its contents at successful syncs.
pub(crate) async fn careless(orders: Orders, name: String, mut rng: Rng) -> History {
    let caller = Caller::root();
    let mut history = History::new(&name);
    let Ok(root) = orders.volume.root_node().await else { return history };
    let Ok(node) = root.create(&caller, name.as_bytes(), 0o644).await else { return history };
    let options = FileOptions { sync: rng.below(5) == 0, ..FileOptions::default() };
    let Ok(file) = node.open(&caller, options) else { return history };
    for _ in 0..orders.steps {
        let (after, op) = (when(&mut rng), Op::random(&mut rng));
        let before = history.newest();
        let new = op.after(&before);
        let began = (orders.position)();
        let done = cut(&orders.rt, after, op.run(&file, orders.has_extents)).await;
        let ended = (orders.position)();
        let is_synced = matches!((op.kind, &done), (10, Some(Ok(true))));
        let told = format!("{op:?}, {done:?}");
        if done.is_none() && op.goes_on() {
            orders.rt.sleep(orders.settles_within).await;
        }
        // The intended contents are those in memory, even if the device does not accept them.
        let mut held = vec![0; file.size() as usize];
        let after = match file.read(0, &mut held).await {
            Ok(read) if read == held.len() => held,
            _ => {
                // A page cannot be read: from here on the file's contents are unknown.
                history.add(Step { began, ended, op: told, is_synced: false, new: new.clone(), after: new });
                history.ends_here();
                break;
            }
        };
        history.add(Step { began, ended, op: told, is_synced, new, after });
    }
    let _ = file.sync().await;
    history
}
