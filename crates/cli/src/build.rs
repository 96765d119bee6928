//! `extant build` and `extant mkfs`.

use crate::args::{BuildArgs, MkfsArgs, VolumeArgs};
use crate::failure::Failure;
use crate::image_path::ImagePath;
use crate::json;
use crate::parts;
use crate::progress::Progress;
use crate::session::Session;
use crate::target;
use crate::values;
use extant_fs::quote;
use extant_image::{
    AddOptions, AddReport, BuildError, BuildOptions, BuildReport, DeviceTable, FeatureChoices, FileContexts,
    Note, Overrides, Ownership, SizePolicy, Source, Timestamp, VolumeOptions,
};
use extant_rt::Rt;
use serde::Serialize;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

pub(crate) fn run(session: &mut Session, args: &BuildArgs) -> Result<(), Failure> {
    if let Some(source) = args.sources.iter().find(|source| is_remote(source)) {
        return Err(Failure::Usage(format!(
            "{}: extant fetches nothing; `skopeo copy docker://NAME oci:DIRECTORY` or `docker save NAME -o X.tar` makes a \
             source of an image, and `curl URL | extant build - -o IMAGE` builds from an archive",
            quote(source.as_os_str().as_encoded_bytes())
        )));
    }
    let sources: Vec<Source> = args.sources.iter().cloned().map(Source::Guess).collect();
    let ownership = match args.all_root {
        true => Ownership::AllRoot,
        false if args.owner_map.is_empty() => Ownership::Source,
        false => Ownership::Map(values::owner_map(&args.owner_map)),
    };
    if let Some(place) = &args.into {
        return add(session, args, place, &sources, ownership);
    }
    let output = args.output.as_ref().expect("clap wants it without --into");
    let in_place = target::in_place(session, output, &session.part, true, &args.target)?;
    let filled = in_place.as_ref().map(|place| SizePolicy::Fixed(place.device.limits().capacity_bytes));
    let is_in_place = in_place.is_some();
    let options = BuildOptions {
        output: output.clone(),
        in_place,
        foreign_locks: args.target.foreign_locks(),
        volume: args.volume.to_options(args.size.or(filled).unwrap_or_default(), &session.rt),
        ownership,
        clamp_time: source_date_epoch()?,
        one_file_system: args.one_file_system,
        selection: args.selection.to_selection(),
        platform: args.platform.clone(),
        image_name: args.image.clone(),
        layers: args.layers,
        overrides: overrides(args)?,
    };
    let progress = Progress::new(0, session.quiet);
    let report = extant_image::build(&options, &sources, &session.rt, progress.to_callback());
    progress.finish();
    let report = report.map_err(|error| match error {
        BuildError::TooSmall { .. } if !is_in_place => {
            Failure::Advised { error, advice: "ask for that size or more, or for --size exact" }
        }
        BuildError::Overfull { .. } => {
            Failure::Advised { error, advice: "ask for a larger --size, or for --size exact" }
        }
        error => target::failure(error, is_in_place),
    })?;
    tell(session, output, &report, args.json)
}

/// Whether a source that does not exist is the address of something that could be fetched.
fn is_remote(source: &Path) -> bool {
    let text = source.to_string_lossy();
    let has_tag = text.rsplit_once(':').is_some_and(|(name, tag)| !name.is_empty() && !tag.contains('/'));
    !source.exists() && (text.contains("://") || has_tag)
}

/// The changes that options make to the sources.
fn overrides(args: &BuildArgs) -> Result<Overrides, Failure> {
    let read = |path: &PathBuf| {
        let bytes = std::fs::read(path).map_err(|error| Failure::host(path, error))?;
        Ok::<_, Failure>((quote(path.as_os_str().as_encoded_bytes()), bytes))
    };
    let device_table = match args.device_table.as_ref().map(read).transpose()? {
        Some((name, bytes)) => Some(DeviceTable::parse(&name, &bytes)?),
        None => None,
    };
    let file_contexts = match args.file_contexts.as_ref().map(read).transpose()? {
        Some((name, bytes)) => {
            let text = String::from_utf8(bytes);
            let text = text.map_err(|_| Failure::Usage(format!("{name}: a file_contexts is text")))?;
            Some(FileContexts::parse(&name, &text)?)
        }
        None => None,
    };
    Ok(Overrides { no_acls: args.no_acls, no_xattrs: args.no_xattrs, device_table, file_contexts })
}

/// Adds the sources to a volume.
fn add(
    session: &mut Session,
    args: &BuildArgs,
    place: &ImagePath,
    sources: &[Source],
    ownership: Ownership,
) -> Result<(), Failure> {
    let device = session.device_to_change(&place.image, args.target.foreign_locks())?;
    let options = AddOptions {
        image: place.image.clone(),
        directory: place.path.clone(),
        ownership,
        clamp_time: source_date_epoch()?,
        one_file_system: args.one_file_system,
        selection: args.selection.to_selection(),
        platform: args.platform.clone(),
        image_name: args.image.clone(),
        layers: args.layers,
        overrides: overrides(args)?,
    };
    let progress = Progress::new(0, session.quiet);
    let added = extant_image::add(&options, sources, device, &session.rt, progress.to_callback());
    progress.finish();
    let AddReport { files, directories, free_bytes, free_inodes, notes, problems } =
        added.map_err(|error| match error {
            BuildError::Volume { path, error } => match session.not_opened_to_change(&place.image, error) {
                Failure::Volume { error, .. } => Failure::Volume { place: path, error },
                failure => failure,
            },
            error => target::failure(error, false),
        })?;
    for note in &notes {
        session.summary(&describe(note));
    }
    session.problems(&place.image_quoted(), problems);
    if args.json {
        let notes = notes.iter().map(describe).collect();
        let report = JsonAdded { files, directories, free_bytes, free_inodes, notes };
        return json::print(&mut session.out, &report);
    }
    session.summary(&format!(
        "{}: {files} files and {directories} directories added, {free_bytes} bytes and {free_inodes} inodes free",
        place.image_quoted()
    ));
    Ok(())
}

pub(crate) fn mkfs(session: &mut Session, args: &MkfsArgs) -> Result<(), Failure> {
    let in_place = target::in_place(session, &args.image, &session.part, args.size.is_some(), &args.target)?;
    let is_in_place = in_place.is_some();
    let capacity = in_place.as_ref().map(|place| place.device.limits().capacity_bytes);
    let unsized_told = "a new image needs a size, as in `extant mkfs IMAGE 512M`";
    let size = args.size.or(capacity).ok_or_else(|| Failure::Usage(unsized_told.into()))?;
    let options = args.volume.to_options(SizePolicy::Fixed(size), &session.rt);
    let now = Timestamp { seconds: session.rt.wall_clock(), nanos: 0 };
    let created = source_date_epoch()?.unwrap_or(now);
    let progress = Progress::new(0, session.quiet);
    let target = target::of(&args.image, in_place, &args.target);
    let report = extant_image::mkfs_on(target, &options, created, &session.rt, progress.to_callback());
    progress.finish();
    let report = report.map_err(|error| match error {
        BuildError::TooSmall { .. } if !is_in_place => {
            Failure::Advised { error, advice: "ask for that size or more" }
        }
        error => target::failure(error, is_in_place),
    })?;
    tell(session, &args.image, &report, args.json)
}

impl VolumeArgs {
    fn to_options(&self, size: SizePolicy, rt: &Rt) -> VolumeOptions {
        let mut features = FeatureChoices::default();
        self.features.iter().for_each(|feature| feature.apply(&mut features));
        VolumeOptions {
            fs_type: self.fs_type,
            block_size: self.block_size,
            inode_size: self.inode_size,
            size,
            inodes: self.inodes,
            bytes_per_inode: self.bytes_per_inode,
            reserved_milli_percent: self.reserved,
            journal: self.journal,
            label: self.label.clone().unwrap_or_default().into_vec(),
            uuid: self.uuid.map(|uuid| uuid.bytes(rt)),
            hash_seed: self.hash_seed,
            features,
        }
    }
}

/// Value of `SOURCE_DATE_EPOCH`, as defined by
/// <https://reproducible-builds.org/specs/source-date-epoch/>.
pub(crate) fn source_date_epoch() -> Result<Option<Timestamp>, Failure> {
    let Some(value) = std::env::var_os("SOURCE_DATE_EPOCH").filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let seconds = value.to_str().and_then(|value| value.parse().ok()).filter(|&seconds| seconds >= 0);
    let wrong = || Failure::Usage("SOURCE_DATE_EPOCH must be a number of seconds since 1970".into());
    Ok(Some(Timestamp { seconds: seconds.ok_or_else(wrong)?, nanos: 0 }))
}

fn tell(session: &mut Session, image: &Path, report: &BuildReport, as_json: bool) -> Result<(), Failure> {
    for note in &report.notes {
        session.summary(&describe(note));
    }
    if as_json {
        return json::print(&mut session.out, &JsonReport::new(report));
    }
    let BuildReport { image_bytes, free_bytes, files, directories, free_inodes, .. } = report;
    session.summary(&format!(
        "{}: {image_bytes} bytes, {files} files, {directories} directories, {free_bytes} bytes and {free_inodes} inodes free",
        parts::described(image, &session.part)
    ));
    Ok(())
}

fn describe(note: &Note) -> String {
    match note {
        Note::Whiteouts { .. } => format!("{note}; --layers applies them"),
        note => note.to_string(),
    }
}

#[derive(Serialize)]
struct JsonAdded {
    files: u32,
    directories: u32,
    free_bytes: u64,
    free_inodes: u32,
    /// Human-readable differences between volume and sources.
    notes: Vec<String>,
}

#[derive(Serialize)]
struct JsonReport {
    image_bytes: u64,
    block_bytes: u32,
    free_bytes: u64,
    used_inodes: u32,
    free_inodes: u32,
    files: u32,
    directories: u32,
    uuid: String,
    /// Human-readable differences between volume and sources.
    notes: Vec<String>,
}

impl JsonReport {
    fn new(report: &BuildReport) -> Self {
        Self {
            image_bytes: report.image_bytes,
            block_bytes: report.block_bytes,
            free_bytes: report.free_bytes,
            used_inodes: report.used_inodes,
            free_inodes: report.free_inodes,
            files: report.files,
            directories: report.directories,
            uuid: json::uuid(&report.uuid),
            notes: report.notes.iter().map(describe).collect(),
        }
    }
}
