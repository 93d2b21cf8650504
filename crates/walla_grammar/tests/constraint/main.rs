//! Tests of constraints in one program, which builds faster than one for each file.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../walla_model/tests/tokenizer_common/mod.rs"]
mod lists;
#[path = "../../../walla_model/tests/reference_data/mod.rs"]
mod reference_data;

mod exact;
mod forced;
mod fuzz_bodies;
mod hostile;
mod keywords;
mod lark;
mod limits;
mod messages;
mod numbers;
mod random_schemas;
mod unsatisfiable;
mod vocabulary;
mod walks;
