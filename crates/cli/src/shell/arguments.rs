//! Arguments of `extant shell`, and of the commands at its prompt.

use crate::edit_args::EditCommand;
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

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
    Ls {
        /// Show mode, links, owner, size and time of change
        #[arg(short, long)]
        long: bool,
        /// Show names that begin with a dot as well
        #[arg(short, long)]
        all: bool,
        /// List sub-directories as well, by path
        #[arg(short = 'R', long)]
        recursive: bool,
        /// List a directory itself, not its contents
        #[arg(short, long)]
        directory: bool,
        /// Files and directories; the working directory by default
        #[arg(value_name = "PATH")]
        paths: Vec<OsString>,
    },
    /// Change the working directory
    Cd {
        /// The new one; the root by default
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
        /// Go this deep only
        #[arg(short = 'L', long, value_name = "LEVELS", value_parser = clap::value_parser!(u32).range(1..))]
        depth: Option<u32>,
        /// Where to begin; the working directory by default
        path: Option<OsString>,
    },
    /// Copy a file or directory out of the image, with its attributes
    Get {
        /// File or directory to copy
        path: OsString,
        /// Destination on the host: a directory to copy into, or a new name
        #[arg(default_value = ".", value_name = "HOST")]
        to: PathBuf,
    },
    /// Show the bytes and inodes that are free
    Df,
    #[command(flatten)]
    Change(EditCommand),
    /// Leave the shell; so does the end of input
    #[command(alias = "quit")]
    Exit,
}
