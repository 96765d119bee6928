//! `extant lab`.

use crate::failure::Failure;
use crate::lab_args::{LabCommand, names_experiment};
use crate::lab_sweep;
use crate::session::Session;
use extant_lab::command::{self, Jobs, ReproduceRequest, Selection, TraceReport};
use extant_lab::{Memory, Policy};
use std::path::Path;

pub(crate) fn run(session: &mut Session, command: &LabCommand) -> Result<(), Failure> {
    if let LabCommand::Sweep(args) = command {
        return lab_sweep::run(session, args);
    }
    let out = session.out.as_write()?;
    match command {
        LabCommand::Run(args) => match &args.words[..] {
            [path] if names_experiment(Path::new(path)) => {
                if args.machine.is_some() || args.memory.memory() != Memory::default() || args.trace.is_some()
                {
                    return Err(Failure::Usage(format!(
                        "{path}: an experiment names its machine and policies itself; leave options like --machine out"
                    )));
                }
                let selection = Selection {
                    settings: args.settings.clone(),
                    report: args.report.clone(),
                    blktrace: args.blktrace.clone(),
                    ..args.part.of(path)
                };
                Ok(command::experiment(&selection, out)?)
            }
            [path, word, ..] if names_experiment(Path::new(path)) => Err(Failure::Usage(format!(
                "{path}: an experiment stands alone and last; put options such as {word} before it"
            ))),
            words if args.machine.is_none() && args.blktrace.is_some() => Err(Failure::Usage(format!(
                "{}: --blktrace is of modelled disks; name a machine with --machine",
                words.join(" ")
            ))),
            words if args.machine.is_none() && !args.settings.is_empty() => Err(Failure::Usage(format!(
                "{}: --set changes a machine's file; name one with --machine",
                words.join(" ")
            ))),
            words if args.report.is_some() => Err(Failure::Usage(format!(
                "{}: --report is of an experiment; name its folder or .toml file",
                words.join(" ")
            ))),
            words if !args.part.is_given() => {
                let default = Policy::default();
                let policy = Policy {
                    elevator: args.elevator.unwrap_or(default.elevator),
                    requests: args.requests.map(|requests| requests as usize),
                    memory: args.memory.memory(),
                    blktrace: args.blktrace.clone(),
                    volume: args.volume.clone(),
                    ..default
                };
                let jobs = Jobs {
                    words: words.to_vec(),
                    machine: args.machine.clone(),
                    policy,
                    seed: args.seed.unwrap_or(1),
                    settings: args.settings.clone(),
                    trace: args.trace.clone(),
                };
                Ok(command::jobs(&jobs, out)?)
            }
            words => Err(Failure::Usage(format!(
                "{}: --workload, --row and --seconds choose from an experiment; name its folder or .toml file",
                words.join(" ")
            ))),
        },
        LabCommand::List(args) => Ok(command::list(args.folder.as_deref(), out)?),
        LabCommand::Show(args) => Ok(command::show(&args.name, out)?),
        LabCommand::Check(args) => Ok(command::check(&args.folders, args.update, out)?),
        LabCommand::Sweep(_) => unreachable!("it has begun already"),
        LabCommand::Calibrate(args) => Ok(command::calibrate(&args.experiment, args.write, out)?),
        LabCommand::Reproduce(args) => {
            let request = ReproduceRequest {
                root: args.folder.clone(),
                only: args.only.clone(),
                format: args.format.into(),
                results: args.bands.then(|| args.results.clone()),
                report: args.report.clone(),
            };
            Ok(command::reproduce(&request, out)?)
        }
        LabCommand::Compare(args) => Ok(command::compare(&args.results, out)?),
        LabCommand::Report(args) => {
            let request =
                TraceReport { trace: args.trace.clone(), drawing: args.output.clone(), pauses: args.pauses };
            Ok(command::trace_report(&request, out)?)
        }
    }
}
