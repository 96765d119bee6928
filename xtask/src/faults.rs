//! `cargo xtask faults` and `cargo xtask hostile`: all faults, and any number of damaged volumes.

use extant_block::Op;
use extant_torture::campaign::{PROFILES, Profile};
use extant_torture::check::Fsck;
use extant_torture::faults::{FailOne, Full, Scarce, Sweep, WORKLOADS};
use extant_torture::hostile::{self, End, Victim};

fn number(args: &[&str], name: &str, default: u64) -> Result<u64, String> {
    let Some(at) = args.iter().position(|arg| *arg == name) else { return Ok(default) };
    let value = args.get(at + 1).and_then(|value| value.parse().ok());
    value.ok_or_else(|| format!("{name} needs a number"))
}

fn ended(what: &str, runs: u64, failures: u64) -> Result<(), Box<dyn std::error::Error>> {
    println!("{what}: {runs} runs, {failures} failed");
    if failures > 0 { Err(format!("{failures} runs failed").into()) } else { Ok(()) }
}

const USAGE: &str = "\
usage: cargo xtask faults [OPTION]...
EIO at every bio of every workload on every kind of volume, and every kind of full volume.
  --seeds N        random workloads and full volumes of each kind (default 4)
  --only PROFILE   volumes of this kind alone
  --full           full volumes alone
  --replay PROFILE WORKLOAD SEED read|write|flush NTH [later]
                   print one run, operation by operation";

/// EIO at every bio of every workload on every kind of volume, and every kind of full volume.
pub(crate) fn faults(args: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    if args.iter().any(|arg| matches!(*arg, "-h" | "--help")) {
        println!("{USAGE}");
        return Ok(());
    }
    if let ["--replay", replay @ ..] = args {
        return replayed(replay);
    }
    let seeds = number(args, "--seeds", 4)?;
    let only = args.iter().position(|arg| *arg == "--only").map(|at| args.get(at + 1).copied());
    let is_wanted = |profile: &Profile| only.is_none_or(|only| only == Some(profile.name));
    let all = PROFILES.iter().filter(|_| !args.contains(&"--full"));
    let (swept, full): (Vec<_>, Vec<_>) = (
        all.filter(|one| is_wanted(one)).collect(),
        Full::PROFILES.iter().filter(|one| is_wanted(one)).collect(),
    );
    if swept.is_empty() && full.is_empty() {
        return Err("no profile has this name".into());
    }
    let (mut runs, mut failures) = (0, 0);
    let mut tell = |outcome: Result<(), String>, what: &dyn Fn() -> String| {
        runs += 1;
        if let Err(words) = outcome {
            failures += 1;
            println!("FAILED: {}: {words}\n", what());
        }
    };
    for &profile in swept {
        for workload in &WORKLOADS {
            for seed in 1..=if workload.name == "random" { seeds } else { 1 } {
                let sweep = Sweep::new(profile, workload, seed)?;
                for op in [Op::Read, Op::Write, Op::Flush] {
                    let bios = sweep.bios(op)?;
                    println!("{}, {}, seed {seed}: {bios} of {op}", profile.name, workload.name);
                    for (nth, and_later) in (0..bios).flat_map(|nth| [(nth, false), (nth, true)]) {
                        let fail = FailOne { op, nth, and_later };
                        tell(sweep.check(fail), &|| {
                            format!("{}, {}, seed {seed}, {fail:?}", profile.name, workload.name)
                        });
                    }
                }
            }
        }
    }
    for &profile in full {
        let full = Full::new(profile)?;
        for seed in 1..=seeds {
            for left in 0..24 {
                for scarce in [Scarce::Blocks(left), Scarce::Inodes(left)] {
                    let outcome = full.check(scarce, seed).map(drop);
                    tell(outcome, &|| format!("{}, seed {seed}, {scarce:?}", profile.name));
                }
            }
        }
    }
    ended("faults", runs, failures)
}

fn replayed(args: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    let ([profile, workload, seed, op, nth] | [profile, workload, seed, op, nth, "later"]) = *args else {
        return Err("--replay needs PROFILE WORKLOAD SEED read|write|flush NTH [later]".into());
    };
    let profile =
        PROFILES.into_iter().find(|known| known.name == profile).ok_or("no profile has this name")?;
    let workload =
        WORKLOADS.iter().find(|known| known.name == workload).ok_or("no workload has this name")?;
    let op = match op {
        "read" => Op::Read,
        "write" => Op::Write,
        "flush" => Op::Flush,
        _ => return Err("the operation is read, write or flush".into()),
    };
    let sweep = Sweep::new(profile, workload, seed.parse()?)?;
    let fail = FailOne { op, nth: nth.parse()?, and_later: args.len() == 6 };
    print!("{}", sweep.told(fail)?);
    Ok(sweep.check(fail)?)
}

/// `--seeds N` damaged volumes of each kind (default 500), starting with seed `--from`.
pub(crate) fn hostile(args: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    let (from, seeds) = (number(args, "--from", 1)?, number(args, "--seeds", 500)?);
    let fsck = Fsck::is_installed().then(Fsck::new).transpose()?;
    let (mut runs, mut failures) = (0, 0);
    for profile in hostile::PROFILES {
        let victim = Victim::new(profile)?;
        let mut written = 0;
        for seed in from..from + seeds {
            runs += 1;
            match victim.check(seed, fsck.as_ref()) {
                Ok(end) => written += u64::from(end == End::Written),
                Err(words) => {
                    failures += 1;
                    println!("FAILED: {}, seed {seed}: {words}\n", profile.name);
                }
            }
        }
        println!("{}: {written} of {seeds} were opened for writing", profile.name);
    }
    ended("hostile", runs, failures)
}
