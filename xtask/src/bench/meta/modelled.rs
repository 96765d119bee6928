//! The same operations in the virtual world, where no other load shares the processors.

use super::bed::{CACHE_BYTES, IMAGE_BYTES, image};
use super::report::{Target, absolute};
use super::{Options, Result};
use extant::asynch::{Dir, Volume};
use extant::{FileOptions, OpenOptions};
use extant_block::{FileDevice, FileOptions as DeviceOptions};
use extant_rt::{Class, Nanos};
use extant_sim::{Machine, Sim};
use std::path::Path;
use std::sync::Arc;

const FILES: usize = 10_000;

/// As in `names`, with a yield after each round of operations.
async fn mixed(rt: extant_rt::Rt, dir: Dir) -> extant::Result<()> {
    let mut flags = FileOptions::new();
    flags.write(true).create_new(true);
    for n in 0..FILES {
        let (name, renamed) = (format!("file-{n:06}"), format!("renamed-{n}"));
        dir.open_with(&name, &flags).await?;
        dir.rename(&name, &renamed).await?;
        if n % 2 == 0 {
            dir.remove_file(&renamed).await?;
        }
        rt.yield_now().await;
    }
    Ok(())
}

/// Virtual time of the work on `tasks` tasks, including the final sync.
fn time(options: &Options, machine: Machine, tasks: usize) -> Result<Nanos> {
    let sim = Sim::new(machine, 1);
    let rt = sim.rt().clone();
    let path = image(&options.dir, "ours.img", IMAGE_BYTES, &[])?;
    let device = FileDevice::open(&path, DeviceOptions { write: true, direct: false })?.driven_by(&rt);
    let open = OpenOptions::new().write(true).cache_bytes(CACHE_BYTES);
    let work = async {
        let volume = Volume::open_device(&rt, Arc::new(device), &open).await?;
        let mut dirs = Vec::new();
        for n in 0..tasks {
            let name = format!("d{n}");
            volume.root().create_dir(&name).await?;
            dirs.push(volume.root().open_dir(&name).await?);
        }
        volume.sync().await?;
        let start = rt.now();
        let spawn = |dir| rt.spawn("mixed", Class::Normal, mixed(rt.clone(), dir));
        let running: Vec<_> = dirs.into_iter().map(spawn).collect();
        for task in running {
            task.await.expect("no panic")?;
        }
        volume.sync().await?;
        let took = rt.now() - start;
        volume.close().await?;
        Ok::<_, extant::Error>(took)
    };
    Ok(rt.block_on(work)??)
}

pub(super) fn two_tasks(options: &Options) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../machines/vm-2026.toml");
    let machine = Machine::load(&path)?;
    machine.check_costs(&[
        extant_rt::Cost::table(),
        extant_cache::Cost::table(),
        extant_fs::Cost::table(),
    ])?;
    let (one, two) = (time(options, machine.clone(), 1)?, time(options, machine, 2)?);
    let gain = 2.0 * one.0 as f64 / two.0 as f64;
    let what = "create, rename and unlink on two of four virtual processors, against one";
    absolute(what, "x", &[gain], Target::AtLeast(1.8));
    absolute("the same on one: an operation", "µs", &[one.0 as f64 / FILES as f64 / 2.5 / 1e3], Target::None);
    Ok(())
}
