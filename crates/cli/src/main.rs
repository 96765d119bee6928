//! The `extant` command: parses arguments, prints results. The libraries do the work.
#![forbid(unsafe_code)]

mod args;
mod attendant;
mod build;
mod cat;
mod check;
mod check_args;
mod complete;
mod cp;
mod debug;
mod df;
mod diff;
mod docs;
mod du;
mod edit;
mod edit_args;
mod exec;
mod exec_args;
mod exec_stages;
mod export;
mod failure;
mod find;
mod findings;
mod globs;
mod head;
mod hints;
mod image_args;
mod image_path;
mod info;
mod json;
mod lab;
mod lab_args;
mod lab_sweep;
mod ls;
mod modes;
mod mount;
mod mount_args;
mod mount_monitor;
mod mount_sync;
mod output;
mod own_image;
mod owners;
mod parts;
mod place;
mod progress;
mod recover;
mod repair;
mod report;
mod rescue;
mod sandbox;
mod session;
mod shell;
mod shell_word;
mod shrink;
mod stat;
mod target;
mod top;
mod top_sample;
mod tree;
mod undo_file;
mod values;

use args::{Args, Command};
use failure::{Exit, Failure};
use session::Session;
use std::borrow::Cow;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words = hints::as_extant(std::env::args_os().collect());
    let usage = if hints::is_check(&words) { Exit::CheckUsage } else { Exit::Usage };
    let Args { quiet, place, mut command } = match hints::parse(words.clone()) {
        Ok(args) => args,
        Err(told) => return tell(&told, &words, usage),
    };
    let mut session = Session::new(quiet);
    match place::part(&place, &command) {
        Ok(part) => session.part = part,
        Err(failure) => {
            session.fail(match usage {
                Exit::CheckUsage => Failure::Check(Box::new(failure)),
                _ => failure,
            });
            return session.finish();
        }
    }
    let done = match &mut command {
        Command::Build(args) => build::run(&mut session, args),
        Command::Mkfs(args) => build::mkfs(&mut session, args),
        Command::Info(args) => info::run(&mut session, args),
        Command::Ls(args) => ls::run(&mut session, args),
        Command::Tree(args) => tree::run(&mut session, args),
        Command::Stat(args) => stat::run(&mut session, args),
        Command::Cat(args) => cat::run(&mut session, args),
        Command::Head(args) => head::run(&mut session, args),
        Command::Debug(args) => debug::run(&mut session, args),
        Command::Change(command) => edit::run(&mut session, command),
        Command::Edit(args) => edit::run_script(&mut session, args),
        Command::Trim(args) => edit::trim(&mut session, args),
        Command::Defrag(args) => edit::defrag(&mut session, args),
        Command::Shrink(args) => shrink::run(&mut session, args),
        Command::Shell(args) => shell::run(&mut session, args),
        Command::Find(args) => find::run(&mut session, args),
        Command::Du(args) => du::run(&mut session, args),
        Command::Df(args) => df::run(&mut session, args),
        Command::Cp(args) => cp::run(&mut session, args),
        Command::Export(args) => export::run(&mut session, args),
        Command::Rescue(args) => rescue::run(&mut session, args),
        Command::Undelete(args) => rescue::undelete(&mut session, args),
        Command::Diff(args) => diff::run(&mut session, args),
        Command::Check(args) => check::run(&mut session, args),
        Command::Undo(args) => repair::undo(&mut session, args),
        Command::Recover(args) => recover::run(&mut session, args),
        Command::Mount(args) => mount::run(&mut session, args),
        Command::MountMonitor(args) => mount_monitor::run(&mut session, args),
        Command::Umount(args) => mount::umount(&mut session, args),
        Command::Sync(args) => mount_sync::run(args),
        Command::Top(args) => top::run(&mut session, args),
        Command::Exec(args) => return exec::run(session, args),
        // The process still has a single thread here.
        Command::ExecStage(args) => return exec_stages::run(args, quiet),
        Command::Lab(command) => lab::run(&mut session, command),
        Command::Completions { shell } => complete::script(*shell),
        Command::CompletePath(args) => complete::paths(&mut session, args),
        Command::Man { directory } => docs::man(directory),
    };
    if let Err(failure) = done {
        session.fail(failure);
    }
    session.finish()
}

/// Prints help or a usage error; returns the exit code.
fn tell(told: &clap::Error, words: &[OsString], usage: Exit) -> ExitCode {
    if told.use_stderr() {
        let hint = hints::instead(told, words);
        let text = told.render().to_string() + &hint.map(|hint| format!("\n{hint}\n")).unwrap_or_default();
        // Ignore failures to write: the user may have closed standard error.
        let _ = match extant_fs::printable(&text) {
            // With colours, if the terminal supports them.
            Cow::Borrowed(_) if hint.is_none() => told.print(),
            Cow::Borrowed(text) => std::io::stderr().write_all(text.as_bytes()),
            Cow::Owned(text) => std::io::stderr().write_all(text.as_bytes()),
        };
        return ExitCode::from(usage.code());
    }
    let printed = told.print().and_then(|()| std::io::stdout().flush());
    let mut session = Session::new(false);
    if let Err(error) = printed {
        session.fail(Failure::stdout(error));
    }
    session.finish()
}
