//! Where a volume lies: `--offset`, `--size-limit` and `--partition`, and lists of partitions.

use crate::args::{Command, PlaceArgs};
use crate::edit_args::EditCommand;
use crate::failure::Failure;
use crate::json::{self, Bytes};
use crate::output::outln;
use crate::parts::advice;
use crate::session::Session;
use crate::values::human;
use extant::{Part, Partition};
use extant_fs::quote;
use serde::Serialize;

/// The part of the images that a command works on.
pub(crate) fn part(args: &PlaceArgs, command: &Command) -> Result<Part, Failure> {
    let is_own = matches!(command, Command::Trim(_) | Command::Change(EditCommand::Fallocate(_)));
    // These two have an --offset of their own, within the volume or the file.
    let offset = args.volume_offset.or(args.offset.filter(|_| !is_own));
    let told = "--partition says where the volume is and how long; leave --offset and --size-limit away";
    let part = chosen(offset, args.size_limit, args.partition.as_deref());
    let part = part.ok_or_else(|| Failure::Usage(told.into()))?;
    if part == Part::Whole {
        return Ok(part);
    }
    let refused = match command {
        Command::Shrink(args) if args.output.is_none() => {
            let told = "shrink makes an image smaller, and a part of a disk keeps its size; name a file for the smaller \
                        volume with -o";
            return Err(Failure::Usage(told.into()));
        }
        Command::Lab(_)
        | Command::Umount(_)
        | Command::Sync(_)
        | Command::Top(_)
        | Command::Completions { .. }
        | Command::CompletePath(_)
        | Command::Man { .. } => "this command opens no volume",
        _ => return Ok(part),
    };
    Err(Failure::Usage(format!("{refused}; --offset, --size-limit and --partition do not go with it")))
}

/// The part that these options select; `None` if they contradict each other.
pub(crate) fn chosen(offset: Option<u64>, limit_bytes: Option<u64>, partition: Option<&str>) -> Option<Part> {
    match (offset, limit_bytes, partition) {
        (None, None, None) => Some(Part::Whole),
        (None, None, Some(name)) => Some(Part::Partition(name.to_owned())),
        (offset, limit_bytes, None) => Some(Part::Bytes { offset_bytes: offset.unwrap_or(0), limit_bytes }),
        (_, _, Some(_)) => None,
    }
}

/// Prints the partitions of a disk.
pub(crate) fn print(session: &mut Session, there: &[Partition], as_json: bool) -> Result<(), Failure> {
    if as_json {
        return json::print(
            &mut session.out,
            &JsonDisk { partitions: there.iter().map(Into::into).collect() },
        );
    }
    outln!(session.out, "partition  start           size      ext  name and type")?;
    for partition in there {
        let name =
            partition.name.as_deref().map_or(String::new(), |name| format!("{} ", quote(name.as_bytes())));
        outln!(
            session.out,
            "{:<10} {:<15} {:<9} {:<4} {name}{}",
            partition.number,
            partition.start_bytes,
            human(partition.size_bytes),
            if partition.is_ext { "yes" } else { "no" },
            partition.kind
        )?;
    }
    if let Some(advice) = advice(there) {
        session.summary(&advice);
    }
    Ok(())
}

#[derive(Serialize)]
struct JsonDisk<'a> {
    partitions: Vec<JsonPartition<'a>>,
}

#[derive(Serialize)]
struct JsonPartition<'a> {
    number: u32,
    start_bytes: u64,
    size_bytes: u64,
    name: Option<Bytes<'a>>,
    r#type: &'a str,
    is_ext: bool,
}

impl<'a> From<&'a Partition> for JsonPartition<'a> {
    fn from(partition: &'a Partition) -> Self {
        Self {
            number: partition.number,
            start_bytes: partition.start_bytes,
            size_bytes: partition.size_bytes,
            name: partition.name.as_deref().map(|name| Bytes(name.as_bytes())),
            r#type: &partition.kind,
            is_ext: partition.is_ext,
        }
    }
}
