//! Many files in one directory: created, looked up with cold caches, removed.

use super::report::Target;
use super::side::{Kind, Side};
use super::{Figure, Figures, Options, Part, Result, Row};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

const FILES: u64 = 20_000;
/// `nobody`, who owns no file.
const OTHER_USER: u32 = 65_534;

const ROWS: &[Row] = &[
    Row {
        name: "create",
        unit: "k/s",
        targets: &[
            (Kind::Null, Target::AtLeast(0.55)),
            (Kind::Kernel, Target::None),
            (Kind::Fuse2fs, Target::AtLeast(15.0)),
        ],
    },
    Row {
        name: "stat, cold",
        unit: "k/s",
        targets: &[
            (Kind::Null, Target::AtLeast(0.6)),
            (Kind::Kernel, Target::None),
            (Kind::Fuse2fs, Target::None),
        ],
    },
    Row {
        name: "unlink",
        unit: "k/s",
        targets: &[
            (Kind::Null, Target::AtLeast(0.55)),
            (Kind::Kernel, Target::None),
            (Kind::Fuse2fs, Target::AtLeast(15.0)),
        ],
    },
];

/// The steps as the user who has mounted and owns the directory.
pub(super) const OWNER: Part = Part {
    name: "names",
    sides: &[Kind::Ours, Kind::Null, Kind::Kernel, Kind::Fuse2fs],
    rows: ROWS,
    allow_other: false,
    run: |options, side| run(options, side, 0),
};

/// The steps as a user who does not own the directory; for such a user the kernel requests access
/// lists.
pub(super) const OTHER: Part = Part {
    name: "other-user",
    sides: &[Kind::Ours, Kind::Null, Kind::Kernel],
    rows: ROWS,
    allow_other: true,
    run: |options, side| run(options, side, OTHER_USER),
};

fn run(options: &Options, side: &mut Side, user: u32) -> Result<Figures> {
    let files = options.scaled(FILES);
    let dir = side.at.join("d");
    fs::create_dir(&dir)?;
    fs::set_permissions(&dir, Permissions::from_mode(0o777))?;
    let rate = |step| Figure::rate(step, files as f64 / 1000.0);
    let created = rate(side.step("create", "d", files, user)?);
    side.cool()?;
    let looked_up = rate(side.step("stat", "d", files, user)?);
    let removed = rate(side.step("unlink", "d", files, user)?);
    Ok(vec![created, looked_up, removed])
}
