//! Arguments of `extant shell`, and of the commands at its prompt.

use crate::args::LsFlags;
use crate::edit_args::EditCommand;
use clap::{Parser, Subcommand};
use std::ffi::OsString;

/// A line at the prompt.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, name = "", help_template = "{subcommands}\n\nhelp COMMAND explains one.\n")]
pub(super) struct ShellLine {
    #[command(subcommand)]
    pub(super) command: ShellCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum ShellCommand {
    /// List directories
    #[command(disable_help_flag = true)]
    Ls {
        #[command(flatten)]
        flags: LsFlags,
        /// Files and directories; the working directory by default
        #[arg(value_name = "PATH")]
        paths: Vec<OsString>,
    },
    /// Change the working directory
    Cd {
        /// The new directory; the root by default
        path: Option<OsString>,
    },
    /// Print the working directory
    Pwd,
    /// Print files
    Cat {
        /// Files to print
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<OsString>,
    },
    /// Show inode, times, attributes and block map of files
    Stat {
        /// Files to show; symbolic links are not followed
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<OsString>,
    },
    /// Show a directory and everything below it as a tree
    Tree {
        /// Go no deeper than this
        #[arg(short = 'L', long, value_name = "LEVELS", value_parser = clap::value_parser!(u32).range(1..))]
        depth: Option<u32>,
        /// Where to begin; the working directory by default
        path: Option<OsString>,
    },
    /// Copy files and directories out of the image, with their attributes
    #[command(visible_alias = "cp")]
    Get {
        /// Files and directories to copy, and then the destination on the host: a directory to copy
        /// into, or (for one file) a new name. A single path goes into the host's working directory
        #[arg(required = true, value_names = ["PATH", "HOST"])]
        paths: Vec<OsString>,
        /// Copy directories with everything in them, which is the default
        #[arg(short, long, short_aliases = ['R', 'a', 'p'], overrides_with = "recursive")]
        recursive: bool,
    },
    /// Print the beginning of files
    Head {
        /// Files to print
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<OsString>,
        /// Print this many lines
        #[arg(short = 'n', long, value_name = "COUNT", default_value = "10")]
        lines: u64,
    },
    /// Show the bytes and inodes that are free
    Df,
    #[command(flatten)]
    Change(EditCommand),
    /// Leave the shell; so does the end of input
    #[command(alias = "quit")]
    Exit,
}
