//! The format of the CUDA sources, as `.clang-format` describes it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Other versions format some constructs in other ways. PyPI has the program under this version.
const VERSION: &str = "20.1.8";

/// Checks all files in `kernels/`. A virtual environment in the target folder holds the program;
/// it is installed on first use.
///
/// # Errors
/// Files with another format. A program that cannot be installed is only reported.
pub fn check() -> Result<(), String> {
    let target = crate::target_folder(&crate::metadata("--no-deps --offline")?)?;
    let program = match install(&target.join("walla_clang_format")) {
        Ok(program) => program,
        Err(reason) => {
            eprintln!("xtask: the format of the kernels is not checked: {reason}");
            return Ok(());
        }
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = crate::width::files(&root.join("kernels"));
    files.retain(|path| path.extension().is_some_and(|end| end == "cu" || end == "cuh"));
    files.sort();
    if files.is_empty() {
        return Err("kernels/ has no sources".to_owned());
    }
    crate::run(Command::new(program).args(["--dry-run", "--Werror"]).args(&files))?;
    eprintln!("xtask: {} CUDA files are formatted", files.len());
    Ok(())
}

fn install(environment: &Path) -> Result<PathBuf, String> {
    let program = environment.join("bin/clang-format");
    let is_whole = || {
        let output = Command::new(&program).arg("--version").output();
        output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(VERSION))
    };
    if !is_whole() {
        crate::python::install(environment, &[&format!("clang-format=={VERSION}")])?;
    }
    if is_whole() { Ok(program) } else { Err(format!("{} does not run", program.display())) }
}
