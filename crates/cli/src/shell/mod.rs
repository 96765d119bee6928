//! `extant shell`: works on one volume at a prompt, or with a list of commands from a pipe.
//!
//! Commands that read are those of the command line, and commands that change are those of an
//! `edit` script, with the image and the working directory supplied here.

mod arguments;
mod history;
mod prompt;
mod redirect;

use crate::args::{CatArgs, CpArgs, HeadArgs, ImageArgs, LsArgs, ShellArgs, StatArgs, TreeArgs};
use crate::edit::{self, Edit, words};
use crate::edit_args::EditCommand;
use crate::failure::Failure;
use crate::image_path::{ImagePath, plain_names};
use crate::output::outln;
use crate::session::{Access, Session};
use crate::{cat, cp, head, ls, stat, tree};
use arguments::{ShellCommand, ShellLine};
use clap::Parser;
use extant::{Error, Volume};
use extant_format::FileKind;
use extant_fs::quote;
use prompt::{Prompt, Typed};
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, IsTerminal};
use std::ops::ControlFlow::{self, Break, Continue};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

pub(crate) fn run(session: &mut Session, args: &ShellArgs) -> Result<(), Failure> {
    let mut shell = Shell::open(session, args)?;
    let done = match std::io::stdin().is_terminal() {
        true => shell.converse(),
        false => shell.obey(),
    };
    done.and(shell.close())
}

struct Shell<'a> {
    session: &'a mut Session,
    image: PathBuf,
    /// Set if the volume may be changed.
    writable: Option<Volume>,
    reading: extant_fs::Volume,
    /// Absolute path of the working directory; starts with a slash and contains no `.` or `..`.
    directory: Vec<u8>,
}

impl<'a> Shell<'a> {
    fn open(session: &'a mut Session, args: &ShellArgs) -> Result<Self, Failure> {
        let image = args.image.clone();
        let writable = args.write.then(|| edit::open(session, &image, args.lock)).transpose()?;
        let reading = match &writable {
            Some(volume) => {
                let volume = volume.stored().clone();
                session.lend(&image, &volume);
                volume
            }
            None => {
                let place = ImagePath { image: image.clone(), path: b"/".to_vec() };
                session.volume(&place, &args.open, Access::Metadata)?
            }
        };
        Ok(Self { session, image, writable, reading, directory: b"/".to_vec() })
    }

    fn close(self) -> Result<(), Failure> {
        match self.writable {
            Some(volume) => {
                self.session.forget(&self.image);
                edit::close(self.session, &self.image, &volume)
            }
            None => Ok(()),
        }
    }

    /// Reads commands at a prompt. After a failure the next command is read; a change is durable
    /// when its command returns.
    fn converse(&mut self) -> Result<(), Failure> {
        let mut prompt = Prompt::new(&self.session.rt, &self.reading).map_err(Failure::stdout)?;
        loop {
            let text = format!("{}:{}> ", self.name(), quote(&self.directory));
            let line = match prompt.read(&text, &self.directory).map_err(Failure::stdout)? {
                Typed::Line(line) => line,
                Typed::Abandoned => continue,
                Typed::End => return Ok(()),
            };
            let done = self.line(line.as_bytes()).and_then(|flow| {
                if let Some(volume) = &self.writable {
                    let place = quote(self.image.as_os_str().as_bytes());
                    volume.sync().map_err(|error| Failure::Volume { place, error })?;
                }
                Ok(flow)
            });
            let flushed = self.session.out.flush();
            match (done, flushed) {
                (_, Err(failure)) | (Err(failure @ (Failure::Closed | Failure::Stdout(_))), _) => {
                    return Err(failure);
                }
                (Err(failure), _) => self.session.fail(failure),
                (Ok(Break(())), _) => return Ok(()),
                (Ok(Continue(())), _) => {}
            }
            // The user has already seen the failure.
            self.session.forgive();
        }
    }

    /// Runs commands from standard input until the first failure.
    fn obey(&mut self) -> Result<(), Failure> {
        let mut input = std::io::stdin().lock();
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let read = input.read_until(b'\n', &mut line);
            if read.map_err(|error| Failure::host(Path::new("standard input"), error))? == 0 {
                break;
            }
            let line = line.strip_suffix(b"\n").unwrap_or(&line);
            let done = self.line(line).map_err(|failure| match failure {
                Failure::Closed => Failure::Closed,
                failure => Failure::Line { number, failure: Box::new(failure) },
            });
            if done?.is_break() || self.session.has_failed() {
                break;
            }
        }
        Ok(())
    }

    /// The image's file name without its directory.
    fn name(&self) -> String {
        quote(self.image.file_name().unwrap_or(self.image.as_os_str()).as_bytes())
    }

    fn line(&mut self, line: &[u8]) -> Result<ControlFlow<()>, Failure> {
        let (line, goal) = redirect::parted(line).map_err(|what| Failure::Usage(what.into()))?;
        let Some((output, elsewhere)) = goal.open(&self.image)? else { return self.own_line(line) };
        self.session.out.flush()?;
        let own = std::mem::replace(&mut self.session.out, output);
        let done = self.own_line(line);
        let flushed = self.session.out.flush();
        self.session.out = own;
        let ends = matches!(done, Ok(Break(())));
        elsewhere.end(done.map(drop).and(flushed))?;
        Ok(if ends { Break(()) } else { Continue(()) })
    }

    /// A line without its redirection.
    fn own_line(&mut self, line: &[u8]) -> Result<ControlFlow<()>, Failure> {
        let words = words(line).map_err(|what| Failure::Usage(what.into()))?;
        if words.is_empty() {
            return Ok(Continue(()));
        }
        match ShellLine::try_parse_from(words) {
            Ok(ShellLine { command: ShellCommand::Exit }) => return Ok(Break(())),
            Ok(ShellLine { command }) => self.command(command)?,
            Err(error) if !error.use_stderr() => {
                let help = error.render().to_string().replace("IMAGE:/PATH", "PATH");
                self.session.out.write(help.as_bytes())?;
            }
            Err(error) => return Err(edit::misread(&error)),
        }
        Ok(Continue(()))
    }

    fn command(&mut self, command: ShellCommand) -> Result<(), Failure> {
        let open = ImageArgs::default();
        let json = false;
        match command {
            ShellCommand::Ls { flags, paths } => {
                let places = self.places(&paths);
                ls::run(self.session, &LsArgs { places, flags, json, open })
            }
            ShellCommand::Head { paths, lines } => {
                let places = self.places(&paths);
                head::run(self.session, &HeadArgs { places, lines, bytes: None, open })
            }
            ShellCommand::Cat { paths } => {
                cat::run(self.session, &CatArgs { places: self.places(&paths), open })
            }
            ShellCommand::Stat { paths } => {
                let places = self.places(&paths);
                stat::run(self.session, &StatArgs { places, json, open })
            }
            ShellCommand::Tree { depth, path } => {
                let place = self.place(path.as_deref().unwrap_or(OsStr::new(".")));
                tree::run(self.session, &TreeArgs { place, depth, json, open })
            }
            ShellCommand::Get { mut paths, recursive } => {
                let to = if paths.len() > 1 { paths.pop() } else { None };
                let to = to.unwrap_or_else(|| ".".into()).into();
                let places = self.places(&paths);
                cp::run(self.session, &CpArgs { places, to, recursive, json, open })
            }
            ShellCommand::Cd { path } => self.change_directory(path.as_deref().unwrap_or(OsStr::new("/"))),
            ShellCommand::Pwd => outln!(self.session.out, "{}", quote(&self.directory)),
            ShellCommand::Df => self.free_space(),
            ShellCommand::Change(command) => self.change(command),
            ShellCommand::Exit => Ok(()),
        }
    }

    fn change(&mut self, mut command: EditCommand) -> Result<(), Failure> {
        let Some(volume) = &self.writable else {
            let text = "the volume is open for reading only; --write of extant shell opens it for changes";
            return Err(Failure::Usage(text.into()));
        };
        command.check_in_batch().map_err(|what| Failure::Usage(what.into()))?;
        for target in command.targets_mut() {
            *target = OsString::from_vec(absolute(&self.directory, target.as_bytes()));
        }
        Edit::in_script(self.session, &self.image, volume).run(&command)
    }

    fn change_directory(&mut self, path: &OsStr) -> Result<(), Failure> {
        let place =
            ImagePath { path: folded(&absolute(&self.directory, path.as_bytes())), ..self.place(path) };
        let found = self.session.rt.block_on(self.reading.resolve(&place.path, extant_fs::Follow::Yes))?;
        let found = found.map_err(|error| Failure::at(&place, error))?;
        if found.kind() != Some(FileKind::Directory) {
            return Err(Failure::at(&place, Error::NotADirectory(quote(&place.path))));
        }
        self.directory = place.path;
        Ok(())
    }

    fn free_space(&mut self) -> Result<(), Failure> {
        let space = self.reading.space();
        let block = u64::from(space.block_bytes);
        let out = &mut self.session.out;
        outln!(out, "bytes:  {} of {} free", space.blocks_free * block, space.blocks * block)?;
        outln!(out, "inodes: {} of {} free", space.inodes_free, space.inodes)
    }

    fn place(&self, path: &OsStr) -> ImagePath {
        ImagePath { image: self.image.clone(), path: absolute(&self.directory, path.as_bytes()) }
    }

    /// The places of some paths; the working directory if there are none.
    fn places(&self, paths: &[OsString]) -> Vec<ImagePath> {
        match paths {
            [] => vec![self.place(OsStr::new("."))],
            paths => paths.iter().map(|path| self.place(path)).collect(),
        }
    }
}

/// Makes a path absolute.
fn absolute(directory: &[u8], path: &[u8]) -> Vec<u8> {
    match path {
        b"." | b"" => directory.to_vec(),
        [b'/', ..] => path.to_vec(),
        _ if directory.ends_with(b"/") => [directory, path].concat(),
        _ => [directory, b"/", path].concat(),
    }
}

/// An absolute path without `.` and `..`.
fn folded(path: &[u8]) -> Vec<u8> {
    [b"/", &plain_names(path)[..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_begin_at_the_working_directory() {
        assert_eq!(absolute(b"/", b"a"), b"/a");
        assert_eq!(absolute(b"/a", b"b"), b"/a/b");
        assert_eq!(absolute(b"/a", b"/b"), b"/b");
        assert_eq!(absolute(b"/a", b"."), b"/a");
        assert_eq!(folded(b"/a/../b//./c/"), b"/b/c");
        assert_eq!(folded(b"/../.."), b"/");
    }
}
