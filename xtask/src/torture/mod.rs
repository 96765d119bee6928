//! `cargo xtask torture`: crash campaigns beyond those of the tests, and mutants that they must
//! catch.

mod mutants;
mod mutation;

use extant_torture::campaign::{Campaign, Effort, PROFILES, Profile, Source};
use extant_torture::check::Tally;
use extant_torture::diff::shrink;
use extant_torture::{Ace, Meddling, Ours, Workload};
use std::time::Duration;

const USAGE: &str = "\
usage: cargo xtask torture [OPTION]...
  --seq N          workloads of ACE with N operations (default 1)
  --random N       random workloads of N operations instead; their indices are seeds
  --directed       instead, workloads for what ACE's do not reach: a log that wraps, orphans, blocks that change their use
  --profile NAME   the volume: ext4 (default), ext4-4k, ext4-orphan-file, ext4-plain, ext3, ext4-groups, ext4-meta-bg,
                   ext4-no-flex-bg, ext4-uninit-bg, ext4-inline, ext4-quota, ext4-online, ext4-ea-inode, ext4-bigalloc,
                   ext4-bigalloc-64k, ext4-data-journal, ext4-bigalloc-data-journal; without a journal ext2, ext4-unlogged,
                   ext4-unlogged-groups
  --from I --to J  workloads with these indices; --from resumes
  --part I/N       every Nth workload, beginning with the Ith
  --seed S         seed of the sampled states and of the disk's timing
  --minutes M      stop after M minutes, and say where to resume
  --prune          reorder only what the journal does not protect
  --torn N         torn states for each cut (default 4; 0 without a journal, where nothing protects torn blocks)
  --fsck N         e2fsck checks one in N distinct states (default 1, 0 for none)
  --kernel N       the kernel checks one in N distinct states (default 0; needs root)
  --recut N        interrupt recovery itself in one of N distinct states, twice in a row (default 0)
  --keep           continue after a failure
  --shrink         shorten a failing workload
  --meddlers       run with faults between the volume and its disk instead: each must be caught
  --mutants I/N    run every Nth bug planted in the file system, beginning with the Ith (0/1 for all): each must be
                   caught, with pruning and without
  --named TEXT     only the bugs with TEXT in their names
  --plant          only make the copy of the tree with the planted bugs, in which any test can be run with one of them";

struct Arguments {
    source: Source,
    profile: Profile,
    from: u64,
    to: u64,
    part: (u64, u64),
    seed: u64,
    limit: Option<Duration>,
    effort: Effort,
    keep: bool,
    shrink: bool,
    meddlers: bool,
    mutants: Option<(u64, u64)>,
    named: String,
    plant: bool,
}

fn parse(args: &[&str]) -> Result<Arguments, String> {
    let mut parsed = Arguments {
        source: Source::Ace(Ace::new(1)),
        profile: PROFILES[0],
        from: 0,
        to: u64::MAX,
        part: (0, 1),
        seed: 1,
        limit: None,
        effort: Effort::default(),
        keep: false,
        shrink: false,
        meddlers: false,
        mutants: None,
        named: String::new(),
        plant: false,
    };
    let mut torn = None;
    let mut args = args.iter();
    while let Some(&arg) = args.next() {
        let mut value = || args.next().copied().ok_or_else(|| format!("{arg} needs a value\n{USAGE}"));
        let number =
            |text: &str| text.parse::<u64>().map_err(|_| format!("{arg} needs a number, not {text}"));
        match arg {
            "--seq" => match number(value()?)? {
                length @ 1..=3 => parsed.source = Source::Ace(Ace::new(length as usize)),
                _ => return Err("ACE's workloads have 1 to 3 operations".into()),
            },
            "--random" => parsed.source = Source::Random(number(value()?)? as usize),
            "--directed" => parsed.source = Source::Directed,
            "--profile" => {
                let name = value()?;
                parsed.profile = Profile::named(name).ok_or_else(|| format!("no profile {name}\n{USAGE}"))?;
            }
            "--from" => parsed.from = number(value()?)?,
            "--to" => parsed.to = number(value()?)?,
            "--part" | "--mutants" => {
                let (at, of) = value()?.split_once('/').ok_or_else(|| format!("{arg} is written as 0/2"))?;
                let part = (number(at)?, number(of)?.max(1));
                if arg == "--part" { parsed.part = part } else { parsed.mutants = Some(part) }
            }
            "--named" => parsed.named = value()?.to_owned(),
            "--seed" => parsed.seed = number(value()?)?,
            "--minutes" => parsed.limit = Some(Duration::from_secs(60 * number(value()?)?)),
            "--prune" => parsed.effort.pruned = true,
            "--torn" => torn = Some(number(value()?)? as usize),
            "--fsck" => parsed.effort.fsck_every = number(value()?)?,
            "--kernel" => parsed.effort.kernel_every = number(value()?)?,
            "--recut" => parsed.effort.recut_every = number(value()?)?,
            "--plant" => parsed.plant = true,
            "--keep" => parsed.keep = true,
            "--shrink" => parsed.shrink = true,
            "--meddlers" => parsed.meddlers = true,
            _ => return Err(format!("{arg}?\n{USAGE}")),
        }
    }
    let options = &mut parsed.effort.options;
    options.torn = torn.unwrap_or(if parsed.profile.has_journal() { options.torn } else { 0 });
    Ok(parsed)
}

pub(crate) fn run(args: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    let args = parse(args)?;
    if args.plant {
        return mutation::plant_only();
    }
    if let Some((first, every)) = args.mutants {
        return mutation::run(first as usize, every as usize, &args.named);
    }
    let campaign = Campaign::new(args.profile, args.seed, args.effort).map_err(|e| e.to_string())?;
    println!(
        "{}, seed {}, oracles: ours{}",
        args.profile.name,
        args.seed,
        campaign.oracles().iter().map(|name| format!(", {name}")).collect::<String>()
    );
    match args.meddlers {
        true => meddlers(&campaign, &args)?,
        false => torture(&campaign, &args)?,
    }
    Ok(())
}

fn indices(args: &Arguments) -> impl Iterator<Item = u64> {
    let (at, of) = args.part;
    (args.from..args.to.min(args.source.len())).filter(move |index| index % of == at)
}

fn torture(campaign: &Campaign, args: &Arguments) -> Result<(), String> {
    let rt = extant_rt::Rt::real(extant_rt::RealConfig::default());
    let start = rt.now();
    let elapsed = || Duration::from_nanos(rt.now().0 - start.0);
    let (mut total, mut failures, mut told) = (Tally::default(), 0_u64, 0);
    for index in indices(args) {
        if args.limit.is_some_and(|limit| elapsed() > limit) {
            println!("time is up: resume with --from {index}");
            break;
        }
        let workload = args.source.workload(index);
        match campaign.check(&workload) {
            Ok(tally) => total += tally,
            Err(failure) => {
                failures += 1;
                println!("FAILED: {failure}\n");
                if args.shrink {
                    shorten(campaign, &workload);
                }
                if !args.keep {
                    break;
                }
            }
        }
        if elapsed().as_secs() / 30 > told {
            told = elapsed().as_secs() / 30;
            println!("{} s: workload {index}, {total}, {failures} failed", elapsed().as_secs());
        }
    }
    println!("{total}, {failures} failed, {:.1} s", elapsed().as_secs_f64());
    if failures > 0 { Err(format!("{failures} workloads failed")) } else { Ok(()) }
}

fn shorten(campaign: &Campaign, workload: &Workload) {
    let fails = |ops: &[extant_torture::Op]| {
        campaign.check(&Workload { name: workload.name.clone(), ops: ops.to_vec() }).is_err()
    };
    let name = format!("{}, shortened", workload.name);
    let short = Workload { name, ops: shrink(&workload.ops, fails) };
    if let Err(failure) = campaign.check(&short) {
        println!("{failure}\n");
    }
}

/// Every fault injected into the device must be caught by some workload.
fn meddlers(campaign: &Campaign, args: &Arguments) -> Result<(), String> {
    let base = campaign.base();
    let mut missed = Vec::new();
    for meddling in Meddling::ALL {
        let mutant = Ours::new(args.seed).meddled(meddling, base.block_bytes, base.journal.clone());
        let caught = indices(args).find_map(|index| {
            let failure = campaign.check_with(&mutant, &args.source.workload(index)).err()?;
            Some((index, failure.complaint.lines().next().unwrap_or_default().to_owned()))
        });
        match caught {
            Some((index, complaint)) => {
                println!("{meddling:?}: caught by workload {index}: {complaint:.120}")
            }
            None => {
                println!("{meddling:?}: MISSED");
                missed.push(meddling);
            }
        }
    }
    if missed.is_empty() { Ok(()) } else { Err(format!("missed: {missed:?}")) }
}
