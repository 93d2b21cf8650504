//! Tests of chat templates in one program, which builds faster than one for each file.

#[path = "../action_templates/mod.rs"]
mod action_templates;
#[path = "../reference_data/mod.rs"]
mod reference_data;
#[path = "../tokenizer_common/mod.rs"]
mod tokenizer_common;

mod actions;
mod actions_untrusted;
mod choice;
mod golden;
mod histories;
mod markers;
mod reasoning;
mod template_jinja;
mod template_limits;
mod template_positions;
mod untrusted;
