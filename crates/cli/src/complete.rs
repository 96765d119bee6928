//! Completion in the user's shell: scripts generated from the command line's definition, and paths
//! in images, for which the scripts call the command itself.

use crate::args::{Args, CompletePathArgs, ImageArgs};
use crate::failure::Failure;
use crate::image_path::ImagePath;
use crate::place;
use crate::session::{Access, Session};
use crate::values;
use clap::CommandFactory;
use clap_complete::Shell;
use extant::Part;
use extant_format::FileKind;
use extant_fs::{Follow, Volume, WalkOptions};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Maximum number of names offered at once.
const NAMES_MAX: usize = 10_000;

/// Appended to clap's script for bash. Readline breaks words at colons, and replaces only what
/// follows the last one.
const BASH: &str = r#"
_extant_or_image() {
    local n=$COMP_CWORD word="${COMP_WORDS[COMP_CWORD]}" last
    while ((n > 1)) && [[ "${COMP_WORDS[n]}" == ":" || "${COMP_WORDS[n-1]}" == ":" ]]; do
        n=$((n - 1))
        word="${COMP_WORDS[n]}$word"
    done
    word="${word#[\"\']}"
    word="${word//\\/}"
    if [[ "$word" != *:/* ]]; then
        _extant "$@"
        return
    fi
    local IFS=$'\n'
    COMPREPLY=($("$1" complete-path "$word" "${COMP_WORDS[@]}" 2>/dev/null))
    if [[ "$COMP_WORDBREAKS" == *:* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*:}"}"}")
    fi
    last="${COMPREPLY[0]}"
    if [[ "$last" == */ || ${#COMPREPLY[@]} -gt 1 ]]; then
        compopt -o nospace 2>/dev/null
    fi
    compopt -o filenames 2>/dev/null
}
complete -F _extant_or_image -o nosort -o bashdefault -o default extant 2>/dev/null ||
    complete -F _extant_or_image -o bashdefault -o default extant
"#;

/// Comes before clap's script for zsh, whose function is renamed to `_extant_words`.
const ZSH: &str = r#"#compdef extant

_extant() {
    if [[ "$PREFIX" != *:/* ]]; then
        _extant_words "$@"
        return
    fi
    local -a all dirs files
    all=("${(@f)$("$words[1]" complete-path "${(Q)PREFIX}" "${(Q)words[@]}" 2>/dev/null)}")
    dirs=(${(M)all:#*/})
    files=(${all:#*/})
    compadd -S '' -- $dirs
    compadd -- $files
}
"#;

/// Appended to clap's script for fish.
const FISH: &str = r#"
function __fish_extant_paths
    set -l words (commandline -opc)
    $words[1] complete-path (commandline -ct | string unescape) $words 2>/dev/null
end
complete -c extant -n 'string match -q -- "*:/*" (commandline -ct)' -f -a '(__fish_extant_paths)'
"#;

/// Prints a script that completes the command's arguments.
pub(crate) fn script(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "extant", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    // Remove hidden commands from the words that bash offers.
    for hidden in Args::command().get_subcommands().filter(|command| command.is_hide_set()) {
        script = script.replace(&format!(" {} ", hidden.get_name()), " ");
    }
    let script = match shell {
        Shell::Bash => format!("{script}{BASH}"),
        Shell::Fish => format!("{script}{FISH}"),
        Shell::Zsh => {
            let body = script.strip_prefix("#compdef extant\n").unwrap_or(&script);
            format!("{ZSH}{}", body.replacen("\n_extant() {\n", "\n_extant_words() {\n", 1))
        }
        _ => script,
    };
    let mut out = crate::output::Output::stdout();
    out.write(script.as_bytes())?;
    out.flush()
}

/// Prints the paths in an image that complete a word, one per line. Prints nothing if there are
/// none.
pub(crate) fn paths(session: &mut Session, args: &CompletePathArgs) -> Result<(), Failure> {
    let word = args.word.as_bytes();
    let place = ImagePath::parse(args.word.clone());
    // Do not connect to a server at each key press.
    if extant::is_address(&place.image) || !word.ends_with(&place.path) || !place.path.starts_with(b"/") {
        return Ok(());
    }
    session.part = part_of(&args.words).unwrap_or(Part::Whole);
    let prefix = place.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let dir = &place.path[..place.path.len() - prefix.len()];
    let Ok(volume) = session.volume(&place, &ImageArgs::default(), Access::Metadata) else { return Ok(()) };
    let rt = session.rt.clone();
    let Ok(names) = rt.block_on(names(&volume, dir, prefix))? else { return Ok(()) };
    let before = &word[..word.len() - prefix.len()];
    for (name, is_dir) in names {
        let end: &[u8] = if is_dir { b"/\n" } else { b"\n" };
        session.out.write(&[before, &name, end].concat())?;
    }
    // The command that the user is typing will report errors.
    session.forget(&place.image);
    Ok(())
}

/// Names in a directory that begin with a prefix, and whether they are directories.
async fn names(volume: &Volume, dir: &[u8], prefix: &[u8]) -> extant_fs::Result<Vec<(Vec<u8>, bool)>> {
    let dir = volume.resolve(dir, Follow::Yes).await?;
    let mut walk = volume.walk(&dir, WalkOptions { depth: Some(1), ..Default::default() }).await?;
    let mut names = Vec::new();
    while let Some(next) = walk.next().await {
        let Ok(entry) = next else { continue };
        let is_hidden = entry.name.starts_with(b".") && prefix.is_empty();
        // Names are printed one per line, so control characters would break the list. Bash would
        // run commands between backquotes and in $(…).
        let is_odd = entry.name.iter().any(|byte| byte.is_ascii_control() || b"`$".contains(byte));
        if !is_hidden && !is_odd && entry.name.starts_with(prefix) && names.len() < NAMES_MAX {
            names.push((entry.name, entry.kind == Some(FileKind::Directory)));
        }
    }
    Ok(names)
}

/// The part of the image that a command line's options name.
fn part_of(words: &[OsString]) -> Option<Part> {
    let value = |name: &str| {
        let (at, word) = words.iter().enumerate().find_map(|(at, word)| {
            let word = word.to_str()?;
            word.strip_prefix(name)
                .filter(|rest| rest.is_empty() || rest.starts_with('='))
                .map(|rest| (at, rest))
        })?;
        match word.strip_prefix('=') {
            Some(value) => Some(value.to_owned()),
            // Bash makes three words of --partition=2.
            None => {
                let mut rest = words[at + 1..].iter().skip_while(|word| *word == "=");
                rest.next().and_then(|value| value.to_str()).map(str::to_owned)
            }
        }
    };
    let size = |name| value(name).and_then(|text| values::size(&text).ok());
    let offset = size("--volume-offset").or_else(|| size("--offset"));
    place::chosen(offset, size("--size-limit"), value("--partition").as_deref())
}

#[cfg(test)]
mod tests {
    use super::part_of;
    use extant::Part;

    #[test]
    fn options_say_where_the_volume_is() {
        let of = |line: &str| part_of(&line.split(' ').map(Into::into).collect::<Vec<_>>());
        let second = Some(Part::Partition("2".into()));
        assert_eq!(of("extant ls --partition 2 a.img:/e"), second);
        assert_eq!(of("extant --partition=2 ls a.img:/e"), second);
        assert_eq!(of("extant ls --partition = 2 a.img : /e"), second);
        let bytes = |offset_bytes, limit_bytes| Some(Part::Bytes { offset_bytes, limit_bytes });
        assert_eq!(of("extant ls --offset 1M a.img:/e"), bytes(1 << 20, None));
        assert_eq!(of("extant ls --size-limit=8K a.img:/e"), bytes(0, Some(8192)));
        assert_eq!(of("extant ls --partitions 2 a.img:/e"), Some(Part::Whole));
    }
}
