//! PostgreSQL's own bench, with the database on the volume.

use super::bed::text;
use super::report::Target;
use super::side::{Kind, Side};
use super::{Figure, Figures, Options, Part, Result, Row};
use std::process::Command;

/// Scale factor of `pgbench`. Each unit adds 100,000 rows of accounts.
const SCALE: u64 = 5;
const SECONDS: u64 = 8;

pub(super) const PART: Part = Part {
    name: "postgres",
    sides: &[Kind::Ours, Kind::Kernel],
    allow_other: true,
    rows: &[Row {
        name: "pgbench, 4 clients: transactions",
        unit: "/s",
        targets: &[(Kind::Kernel, Target::AtLeast(0.8))],
    }],
    run,
};

/// The user `postgres` runs this in its own folder on the volume. The socket is outside.
const SCRIPT: &str = r#"
PATH=$PATH:$(echo /usr/lib/postgresql/*/bin | tr ' ' ':')
run=$(mktemp -d)
trap 'pg_ctl -D base -m immediate stop >/dev/null 2>&1 || :; rm -r "$run"' EXIT
initdb -D base -A trust -U postgres >/dev/null
pg_ctl -D base -w -l "$run/log" -o "-k $run -c listen_addresses=" start >/dev/null
export PGHOST=$run PGUSER=postgres
pgbench -q -i -s "$1" postgres >/dev/null 2>&1
pgbench -c 4 -j 2 -T "$2" postgres 2>/dev/null | sed -n 's/^tps = \([0-9.]*\).*/\1/p'
pg_ctl -D base -m fast stop >/dev/null
"#;

fn run(options: &Options, side: &mut Side) -> Result<Figures> {
    if Command::new("sh")
        .args(["-c", "id postgres && ls /usr/lib/postgresql/*/bin/pgbench"])
        .output()
        .map_or(true, |found| !found.status.success())
    {
        eprintln!("postgres: left out, because pgbench or the user postgres is not there");
        return Ok(vec![None]);
    }
    let dir = side.at.join("pg");
    std::fs::create_dir(&dir)?;
    let own = Command::new("chown").arg("postgres").arg(&dir).status()?;
    let scale = options.scaled(SCALE).to_string();
    let output = Command::new("setpriv")
        .args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "sh", "-ec", SCRIPT, "sh"])
        .args([&scale, &SECONDS.to_string()])
        .current_dir(&dir)
        .output()?;
    if !own.success() || !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("PostgreSQL on {}: {said}", text(&side.at)).into());
    }
    let rate: f64 = String::from_utf8_lossy(&output.stdout).trim().parse()?;
    Ok(vec![Figure::value(rate)])
}
