//! Notes to the user on standard error.

use std::fmt::Arguments;
use std::io::Write;

/// Writes a line to standard error. An error of the write is ignored, because there is nowhere else
/// to report it.
pub fn write(line: Arguments<'_>) {
    let _ignored = writeln!(std::io::stderr(), "{line}");
}

/// `eprintln!` without its panic when standard error is closed or full.
macro_rules! note {
    ($($part:tt)*) => {
        $crate::note::write(format_args!($($part)*))
    };
}

pub(crate) use note;
