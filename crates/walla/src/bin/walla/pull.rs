//! `walla pull`: fetches a model.

use std::io::Write;
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use walla::remote::ApiKey;
use walla::remote::pull::{PullError, PullEvent, PullOptions, pull};
use walla_types::environment;

use crate::args::Pull;
use crate::note::note;
use crate::{Failure, inspect, load, one_line};

pub fn run(arguments: &Pull) -> Result<(), Failure> {
    let mut options = PullOptions::new(&arguments.name);
    options.registry =
        arguments.registry.clone().or_else(environment::registry).unwrap_or(options.registry);
    options.folder = arguments.to.clone().unwrap_or_default();
    options.key = arguments.key_env.as_deref().map(ApiKey::from_env);
    options.force = arguments.force;
    load::block_on(fetch(&options))
}

async fn fetch(options: &PullOptions) -> Result<(), Failure> {
    let bar = bar();
    let pulled = pull(options, &mut |event| show(&bar, &event)).await;
    bar.finish_and_clear();
    let pulled = pulled.map_err(hint)?;
    let path = &pulled.path;
    let how = if pulled.was_here { "is already here" } else { "has arrived" };
    note!("walla: {} {how}: {} bytes, SHA-256 checked", options.name, pulled.bytes);
    if pulled.license.is_none() {
        note!("walla: the registry has no text of the license: see the page of the model");
    }
    let verb = verb_of(path)?;
    // Any name of the system, so that another program can open it.
    std::io::stdout().write_all(&[path.as_os_str().as_encoded_bytes(), b"\n"].concat())?;
    let shown = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/\\.:-_".contains(c);
    let quote = if shown.chars().all(is_plain) { "" } else { "\"" };
    note!("walla: next: walla {verb} {quote}{shown}{quote}");
    Ok(())
}

/// A verb for the model.
///
/// # Errors
/// walla cannot run it. The file stays.
fn verb_of(path: &Path) -> Result<&'static str, Failure> {
    let refused = |error: &dyn std::fmt::Display| {
        let path = path.display();
        // Its checksum is the registry's: another download gives the same bytes.
        Failure::from(format!("{path}: the file is whole, but not for walla: {error}"))
    };
    let spec = inspect::spec(&load::open(path).map_err(|error| refused(&error))?);
    if let Some(error) = spec["error"].as_str() {
        return Err(refused(&error));
    }
    let embeds = spec.get("use").is_some();
    Ok(if embeds { "embed" } else { "chat" })
}

fn show(bar: &ProgressBar, event: &PullEvent<'_>) {
    match event {
        PullEvent::Bytes { done, total } => {
            bar.set_length(*total);
            bar.set_position(*done);
        }
        PullEvent::License(text) => bar.suspend(|| {
            let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
            note!("walla: license: {}", one_line(first));
        }),
        PullEvent::Retry(error, pause) => bar.suspend(|| {
            let error = one_line(&error.to_string());
            note!("walla: warning: {error}; next attempt in {:.1} s", pause.as_secs_f64());
        }),
        PullEvent::Restart => bar.suspend(|| {
            note!(
                "walla: warning: the partial file is damaged or of another version: it begins again"
            );
        }),
        PullEvent::Unencrypted => {
            note!("walla: warning: without encryption, anyone on the way can replace the model");
        }
        _ => {}
    }
}

/// A progress bar on standard error; hidden if that is not a terminal.
fn bar() -> ProgressBar {
    let bar = ProgressBar::no_length();
    let template = "{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Names the flags that help.
fn hint(error: PullError) -> Failure {
    match error {
        PullError::Exists { ref path } if path.is_file() => {
            format!("{error} (--force replaces a file)").into()
        }
        PullError::Exists { .. } => format!("{error} and is no file: move it").into(),
        PullError::NoSpace { .. } => format!("{error} (--to FOLDER)").into(),
        PullError::Unauthorized { .. } => format!("{error} (--key-env NAME)").into(),
        error => error.into(),
    }
}
