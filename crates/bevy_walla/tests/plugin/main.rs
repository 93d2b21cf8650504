//! Tests of the plugin in one program, which builds faster than one for each file.

#[path = "../common/mod.rs"]
mod common;

mod actions;
mod cache_files;
mod changes;
mod characters;
mod consistency;
mod conversation_control;
mod cues;
mod dialogue;
mod disabled;
mod files_and_prompts;
mod globs;
mod groups;
mod host_faults;
#[cfg(feature = "serialize")]
mod hostile_saves;
mod interruption;
mod level_of_detail;
mod lifecycle;
mod lifecycle_table;
mod memories;
mod misuse;
mod moved_conversation;
mod observers;
#[path = "../../../walla_runtime/tests/common/own_thread.rs"]
mod own_thread;
mod pause;
mod random_actions;
mod reasoning;
mod recordings;
#[cfg(feature = "reflect")]
mod reflect;
mod schedules;
mod several_engines;
mod speech_changes;
#[cfg(feature = "speech")]
mod voice;
