//! `extant lab sweep`: makes one run per combination, all of them here, only a part, or all on a
//! cluster.

use crate::failure::Failure;
use crate::lab_args::{Emit, SweepArgs, names_experiment};
use crate::progress::Progress;
use crate::session::Session;
use crate::shell_word::quoted;
use extant_lab::command;
use extant_lab::sweep::{Sweep, SweepOptions, SweptJobs};
use extant_lab::{Memory, Policy};
use std::path::Path;
use std::process::Command;

/// Parts into which a sweep is split for a cluster: a few per processor.
const PARTS: usize = 256;

/// The driver script for `--on`.
const ON_RAY: &str = include_str!("on_ray.py");

pub(crate) fn run(session: &mut Session, args: &SweepArgs) -> Result<(), Failure> {
    let experiment = match &args.words[..] {
        [path] if names_experiment(Path::new(path)) => Some(path),
        _ => None,
    };
    let unfit = match experiment {
        Some(_) if args.machine.is_some() || args.is_of_jobs() => Some(
            "an experiment names its machine, jobs and policies itself; leave options like --machine out",
        ),
        None if args.machine.is_none() => {
            Some("jobs are swept over on a modelled machine; name one with --machine")
        }
        None if args.part.is_given() => {
            Some("--workload, --row and --seconds choose from an experiment; name its folder or .toml file")
        }
        _ => None,
    };
    if let Some(problem) = unfit {
        return Err(Failure::Usage(format!("{}: {problem}", args.words.join(" "))));
    }
    let selection = experiment.map(|path| args.part.of(path));
    if let (Some(selection), false) = (&selection, args.is_new()) {
        return Ok(command::sweep(selection, &args.axes, session.out.as_write()?)?);
    }
    let sweep = match &selection {
        Some(selection) => {
            let setup = command::select(selection)?;
            let sweep = Sweep::of_experiment(&setup, &args.axes, &args.seeds(), args.shard);
            sweep.map_err(command::LabError::from)?
        }
        None => {
            let requests = args.requests.map(|requests| requests as usize);
            let volume = args.volume.clone();
            let policy = Policy { requests, memory: Memory::default(), volume, ..Policy::default() };
            let seeds = args.seeds();
            let swept = SweptJobs {
                jobs: command::jobs_of(&args.words)?,
                machine: args.machine.clone().unwrap_or_default(),
                policy,
                axes: args.axes.clone(),
                options: args.options.clone(),
                elevators: args.elevators.clone(),
                controls: args.controls.clone(),
                seeds: if seeds.is_empty() { vec![1] } else { seeds },
            };
            Sweep::of_jobs(&swept, args.shard).map_err(command::LabError::from)?
        }
    };
    let runs = sweep.len();
    if args.count {
        return session.out.line(format_args!("{runs}"));
    }
    if let Some(emit) = args.emit {
        return session.out.line(format_args!("{}", script(emit, args, runs)));
    }
    if let Some(address) = &args.on {
        on_ray(args, address, runs)?;
    }
    let bar = Progress::of_runs(runs as u64, session.quiet);
    let plan = SweepOptions { results: args.results.clone(), at_a_time: args.at_a_time };
    let done = sweep.run(&plan, bar.of_sweep());
    bar.finish();
    let done = done.map_err(command::LabError::from)?;
    let text = match args.json {
        true => format!("{:#}\n", extant_lab::sweep::json(&done)),
        false => extant_lab::sweep::table(&done),
    };
    session.out.write(text.as_bytes())
}

/// The words of this command line, without the options that say where to make the runs.
fn own_words() -> Vec<String> {
    let mut words = Vec::new();
    let mut given = std::env::args();
    while let Some(word) = given.next() {
        match word.as_str() {
            "--on" | "--shard" | "--emit" | "--results" | "--at-a-time" => drop(given.next()),
            "--json" | "--count" => {}
            word if ["--on=", "--shard=", "--emit=", "--results=", "--at-a-time="]
                .iter()
                .any(|key| word.starts_with(key)) => {}
            _ => words.push(word),
        }
    }
    if let (Some(first), Ok(program)) = (words.first_mut(), std::env::current_exe()) {
        *first = program.display().to_string();
    }
    words
}

/// Returns a scheduler's job array; each element makes a part of the runs.
fn script(emit: Emit, args: &SweepArgs, runs: usize) -> String {
    let parts = runs.clamp(1, PARTS);
    let results = args.results.as_deref().unwrap_or(Path::new("lab-results")).display().to_string();
    let mut words = own_words();
    // Options must come before the jobs, which take all remaining words.
    words.splice(3..3, ["--results", &results, "--at-a-time", "1"].map(str::to_owned));
    let shell: Vec<String> = words.iter().map(|word| quoted(word.as_bytes())).collect();
    match emit {
        Emit::Slurm => {
            let (head, tail) = shell.split_at(3);
            format!(
                "#!/bin/sh\n#SBATCH --job-name=extant-sweep\n#SBATCH --array=1-{parts}\n#SBATCH --cpus-per-task=1\n\
                 {} --shard \"$SLURM_ARRAY_TASK_ID/{parts}\" {} >/dev/null",
                head.join(" "),
                tail.join(" ")
            )
        }
        Emit::Kubernetes => {
            let (head, tail) = shell.split_at(3);
            let line = format!(
                "{} --shard $((JOB_COMPLETION_INDEX + 1))/{parts} {} >/dev/null",
                head.join(" "),
                tail.join(" ")
            );
            let line = serde_json::Value::from(line);
            format!(
                "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: extant-sweep\nspec:\n  completions: {parts}\n  \
                 parallelism: {parts}\n  completionMode: Indexed\n  backoffLimit: 100\n  template:\n    spec:\n      \
                 restartPolicy: Never\n      containers:\n        - name: sweep\n          image: extant\n          \
                 command: [\"sh\", \"-c\", {line}]\n          resources:\n            requests:\n              cpu: \"1\"\n          \
                 volumeMounts:\n            - name: work\n              mountPath: /work\n      volumes:\n        - name: work\n          \
                 persistentVolumeClaim:\n            claimName: work"
            )
        }
    }
}

/// Makes the runs on Ray, and collects their results in the folder.
fn on_ray(args: &SweepArgs, address: &str, runs: usize) -> Result<(), Failure> {
    let Some(results) = &args.results else {
        return Err(Failure::Usage("--on keeps results in a folder; name it with --results".to_owned()));
    };
    let results = std::path::absolute(results).map_err(|error| Failure::host(results, error))?;
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let mut driver = Command::new(&python);
    driver.args(["-c", ON_RAY, address, &runs.clamp(1, PARTS).to_string()]).arg(&results).args(own_words());
    let status = driver.status().map_err(|error| Failure::host(Path::new(&python), error))?;
    match status.success() {
        true => Ok(()),
        false => Err(Failure::Usage(format!(
            "{python} with Ray on {address}: {status}; is Ray installed there (pip install ray), and does the program have the \
             same path on all nodes?"
        ))),
    }
}
