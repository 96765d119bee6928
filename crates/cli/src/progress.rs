//! A progress bar, where somebody watches.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// A bar over bytes on standard error; nothing where that is no terminal, or with `--quiet`.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// For so many bytes in all, perhaps.
    pub(crate) fn new(total_bytes: u64, quiet: bool) -> Self {
        let shown = !quiet && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(total_bytes), target);
        let style = "{elapsed_precise} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        Self(bar)
    }

    pub(crate) fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    /// Does something that prints, with the bar out of the way.
    pub(crate) fn suspend(&self, print: impl FnOnce()) {
        self.0.suspend(print);
    }

    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}
