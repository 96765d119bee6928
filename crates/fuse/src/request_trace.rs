//! Writes a line for each request to a file.

use crate::errno::Failure;
use crate::metrics::name_of;
use crate::wire::{Operation, RequestHeader};
use extant_fs::quote;
use extant_rt::Nanos;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;

/// Writes one line for each request when its reply is sent.
///
/// A line contains the seconds since the server started, the operation, the inode's number as the
/// kernel knows it, the caller, names or the range in a file, the error number or 0, and the
/// microseconds that the request took.
#[derive(Debug)]
pub struct RequestTrace(File);

impl RequestTrace {
    /// Writes to this file, which must only be appended to.
    pub fn new(file: File) -> Self {
        Self(file)
    }

    pub(crate) fn line(
        &self,
        header: &RequestHeader,
        operation: &Operation<'_>,
        failure: Option<&Failure>,
        [began, ended]: [Nanos; 2],
    ) {
        let RequestHeader { opcode, nodeid, uid, pid, .. } = *header;
        let micros = began.0 / 1000;
        let mut line = format!(
            "{}.{:06} {} inode={nodeid} uid={uid} pid={pid}",
            micros / 1_000_000,
            micros % 1_000_000,
            name_of(opcode)
        );
        let (error, took) = (failure.map_or(0, Failure::errno), ended.0.saturating_sub(began.0) / 1000);
        // Writing to a string does not fail.
        let _ = add_details(&mut line, operation);
        let _ = writeln!(line, " error={error} us={took}");
        // A full disk must not stop the server.
        let _ = (&self.0).write_all(line.as_bytes());
    }
}

/// A name in quotation marks, so that it cannot be mistaken for another part of the line.
struct Quoted<'a>(&'a [u8]);

impl std::fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", quote(self.0).replace('"', "\\\""))
    }
}

fn add_details(line: &mut String, operation: &Operation<'_>) -> std::fmt::Result {
    match operation {
        Operation::Lookup { name }
        | Operation::Mknod { name, .. }
        | Operation::Mkdir { name, .. }
        | Operation::Unlink { name }
        | Operation::Rmdir { name }
        | Operation::Create { name, .. }
        | Operation::Setxattr { name, .. }
        | Operation::Getxattr { name, .. }
        | Operation::Removexattr { name } => write!(line, " name={}", Quoted(name)),
        Operation::Symlink { name, target } => write!(line, " name={} to={}", Quoted(name), Quoted(target)),
        Operation::Link { args, name } => write!(line, " from={} name={}", args.oldnodeid, Quoted(name)),
        Operation::Rename { newdir, name, new_name, .. } => {
            write!(line, " name={} dir={newdir} new={}", Quoted(name), Quoted(new_name))
        }
        Operation::Read(args) | Operation::Readdir { args, .. } => {
            write!(line, " fh={} at={} bytes={}", args.fh, args.offset, args.size)
        }
        Operation::Write { args, data } => {
            write!(line, " fh={} at={} bytes={}", args.fh, args.offset, data.len())
        }
        Operation::Setattr(args) => write!(line, " valid={:#x} size={}", args.valid, args.size),
        Operation::Open(args) | Operation::Opendir(args) => write!(line, " flags={:#o}", args.flags),
        Operation::Ioctl { args, .. } => write!(line, " command={:#x}", args.cmd),
        _ => Ok(()),
    }
}
