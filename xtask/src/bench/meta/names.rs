//! Creates, stats, renames and unlinks.

use super::bed::{IMAGE_BYTES, Mount, create, image, open, seconds};
use super::report::{Target, absolute, compared};
use super::{Options, Result};
use extant::Volume;
use std::fs::{self, File};

const FILES: usize = 20_000;
/// Number of stats per file: a single round takes only about 20 ms.
const LOOKS: usize = 10;

fn name(n: usize) -> String {
    format!("file-{n:06}")
}

/// Thousands of files per second created, statted and removed; creating and removing include a
/// sync.
type Rates = [f64; 3];

fn rates(
    make: impl Fn(&str) -> Result<()>,
    stat: impl Fn(&str) -> Result<()>,
    remove: impl Fn(&str) -> Result<()>,
    sync: impl Fn() -> Result<()>,
) -> Result<Rates> {
    let k = |seconds: f64| FILES as f64 / seconds / 1000.0;
    let all = |work: &dyn Fn(&str) -> Result<()>| (0..FILES).try_for_each(|n| work(&name(n)));
    Ok([
        k(seconds(|| all(&make).and_then(|()| sync()))?),
        k(seconds(|| (0..LOOKS).try_for_each(|_| all(&stat)))? / LOOKS as f64),
        k(seconds(|| all(&remove).and_then(|()| sync()))?),
    ])
}

fn ours(options: &Options) -> Result<Rates> {
    let volume = open(&image(&options.dir, "ours.img", IMAGE_BYTES, &[])?, options.buffered)?;
    volume.root().create_dir("d")?;
    let dir = volume.root().open_dir("d")?;
    let rates = rates(
        |name| create(&dir, name),
        |name| Ok(dir.symlink_metadata(name).map(drop)?),
        |name| Ok(dir.remove_file(name)?),
        || Ok(volume.sync()?),
    )?;
    drop(dir);
    volume.close()?;
    Ok(rates)
}

fn theirs(options: &Options) -> Result<Option<Rates>> {
    let path = image(&options.dir, "theirs.img", IMAGE_BYTES, &[])?;
    let Some(mount) = Mount::new(&options.dir, &path)? else { return Ok(None) };
    let dir = mount.at.join("d");
    fs::create_dir(&dir)?;
    let rates = rates(
        |name| Ok(File::create_new(dir.join(name)).map(drop)?),
        |name| Ok(fs::symlink_metadata(dir.join(name)).map(drop)?),
        |name| Ok(fs::remove_file(dir.join(name))?),
        || mount.sync(),
    )?;
    Ok(Some(rates))
}

/// 20,000 files in one directory.
pub(super) fn one_directory(options: &Options) -> Result<()> {
    let mut figures: [[Vec<f64>; 2]; 3] = Default::default();
    for _ in 0..options.rounds {
        let sides = [Some(ours(options)?), theirs(options)?];
        for (side, rates) in sides.iter().enumerate() {
            for (part, rate) in rates.iter().flatten().enumerate() {
                figures[part][side].push(*rate);
            }
        }
    }
    for (what, [ours, theirs]) in ["create", "stat", "unlink"].iter().zip(&figures) {
        let what = format!("{FILES} files in one directory: {what}");
        compared(&what, "k/s", ours, theirs, Target::AtLeast(3.0));
    }
    Ok(())
}

/// Creates, renames and unlinks by one thread in its own directory.
fn mixed(volume: &Volume, thread: usize) -> Result<()> {
    let dir = volume.root().open_dir(format!("d{thread}"))?;
    for n in 0..FILES {
        create(&dir, &name(n))?;
        dir.rename(name(n), format!("renamed-{n}"))?;
        if n % 2 == 0 {
            dir.remove_file(format!("renamed-{n}"))?;
        }
    }
    Ok(())
}

/// The same work on one thread and on two, each in its own directory.
pub(super) fn two_threads(options: &Options) -> Result<()> {
    let mut gains = Vec::new();
    for _ in 0..options.rounds {
        let time = |threads: usize| -> Result<f64> {
            let volume = open(&image(&options.dir, "ours.img", IMAGE_BYTES, &[])?, options.buffered)?;
            (0..threads).try_for_each(|thread| volume.root().create_dir(format!("d{thread}")))?;
            let time = seconds(|| {
                std::thread::scope(|scope| {
                    let work = |thread| mixed(&volume, thread).map_err(|error| error.to_string());
                    let handles: Vec<_> =
                        (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
                    handles.into_iter().try_for_each(|handle| handle.join().expect("a thread"))
                })?;
                Ok(volume.sync()?)
            })?;
            volume.close()?;
            Ok(time)
        };
        let one = time(1)?;
        gains.push(2.0 * one / time(2)?);
    }
    let what = "create, rename and unlink on two threads in directories of their own, against one";
    absolute(what, "x", &gains, Target::AtLeast(1.4));
    Ok(())
}
