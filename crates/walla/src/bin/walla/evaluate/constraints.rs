//! Whether constrained replies conform, by code that knows no grammar.

use walla::{Constraint, FinishReason, Sampling};

use super::report::Fault;
use super::*;

/// Maximum tokens of a reply.
const MAX_TOKENS: u32 = 96;

/// A constraint, a request for it, and the check of the reply.
struct Case {
    name: &'static str,
    request: &'static str,
    constraint: Constraint,
    conforms: fn(&str) -> bool,
}

fn cases() -> Vec<Case> {
    let schema = |name, request, schema: Value, conforms| Case {
        name,
        request,
        constraint: Constraint::json_schema_value(&schema),
        conforms,
    };
    let regex = |name, request, pattern, conforms| Case {
        name,
        request,
        constraint: Constraint::regex(pattern),
        conforms,
    };
    let items = json!({"enum": ["nails", "sword", "horseshoe"]});
    let count = json!({"type": "integer", "minimum": 1, "maximum": 99});
    let place = json!({"type": "integer", "minimum": -9, "maximum": 9});
    let step = object(json!({
        "hours": {"type": "number", "minimum": 0, "maximum": 12},
        "place": {"type": "string", "pattern": "^[a-z]{1,12}$"},
    }));
    let order = object(json!({"count": count, "item": items}));
    vec![
        schema("order", "Two swords, please. Write down my order.", order.clone(), is_order),
        schema(
            "orders",
            "I take a sword and ten nails. Write down the orders.",
            json!({"type": "array", "minItems": 1, "maxItems": 3, "items": order}),
            |text| is_json(text, |v| is_list(v, 1, 3, is_order_value)),
        ),
        schema(
            "mood",
            "A customer shouts at you. Your mood?",
            object(json!({
                "mood": {"enum": ["glad", "angry", "tired"]},
                "why": {"type": "string", "minLength": 1, "maxLength": 40},
            })),
            |text| {
                is_object(text, 2, |o| {
                    is_one_of(&o["mood"], &["glad", "angry", "tired"]) && is_text(&o["why"], 1, 40)
                })
            },
        ),
        schema(
            "optional note",
            "Is the shop open? A note is not needed.",
            object(json!({
                "note": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 20}]},
                "open": {"type": "boolean"},
            })),
            |text| {
                is_object(text, 2, |o| {
                    o["open"].is_boolean() && (o["note"].is_null() || is_text(&o["note"], 0, 20))
                })
            },
        ),
        schema(
            "tuple",
            "Where do you stand? Answer with x, y and the name of the place.",
            json!({
                "type": "array", "prefixItems": [place, place, {"enum": ["forge", "market"]}],
                "items": false, "minItems": 3, "maxItems": 3,
            }),
            |text| {
                is_json(text, |v| {
                    is_list(v, 3, 3, |_| true)
                        && is_integer(&v[0], -9, 9)
                        && is_integer(&v[1], -9, 9)
                        && is_one_of(&v[2], &["forge", "market"])
                })
            },
        ),
        schema(
            "nested",
            "Your plan for today, with places and hours.",
            object(json!({
                "plan": {"type": "array", "minItems": 1, "maxItems": 2, "items": step},
            })),
            |text| {
                is_object(text, 1, |o| {
                    is_list(&o["plan"], 1, 2, |step| {
                        let hours = step["hours"].as_f64();
                        hours.is_some_and(|hours| (0.0..=12.0).contains(&hours))
                            && step["place"]
                                .as_str()
                                .is_some_and(|p| is_of(p, 1, 12, |c| c.is_ascii_lowercase()))
                            && step.as_object().is_some_and(|o| o.len() == 2)
                    })
                })
            },
        ),
        regex(
            "date",
            "When did you last sell a sword? Write a date.",
            r"1[0-9]{3}-(0[1-9]|1[0-2])-[0-3][0-9]",
            |text| {
                let parts: Vec<&str> = text.split('-').collect();
                let [year, month, day] = parts[..] else { return false };
                let is_in = |part: &str, digits, from, to| {
                    part.len() == digits
                        && part.parse().is_ok_and(|n: u32| (from..=to).contains(&n))
                };
                is_in(year, 4, 1000, 1999) && is_in(month, 2, 1, 12) && is_in(day, 2, 0, 39)
            },
        ),
        regex("price", "What does a sword cost?", r"[1-9][0-9]{0,2} (silver|gold)", |text| {
            let Some((number, coin)) = text.split_once(' ') else { return false };
            !number.starts_with(['0', '+'])
                && number.parse().is_ok_and(|n: u32| (1..=999).contains(&n))
                && ["silver", "gold"].contains(&coin)
        }),
        regex("sentence", "Greet a customer.", r"[A-Z][a-z ,']{4,50}[.!?]", |text| {
            let Some(middle) = text.strip_prefix(|c: char| c.is_ascii_uppercase()) else {
                return false;
            };
            let middle = middle.strip_suffix(['.', '!', '?']);
            middle.is_some_and(|m| is_of(m, 4, 50, |c| c.is_ascii_lowercase() || " ,'".contains(c)))
        }),
        Case {
            name: "choice",
            request: "A wolf comes into the shop! What do you do?",
            constraint: Constraint::choice(["attack", "talk to it", "flee"]),
            conforms: |text| ["attack", "talk to it", "flee"].contains(&text),
        },
    ]
}

fn is_json(text: &str, conforms: impl Fn(&Value) -> bool) -> bool {
    serde_json::from_str(text).is_ok_and(|value| conforms(&value))
}

/// Whether a text is an object of `keys` properties.
fn is_object(text: &str, keys: usize, conforms: impl Fn(&Value) -> bool) -> bool {
    is_json(text, |v| v.as_object().is_some_and(|o| o.len() == keys) && conforms(v))
}

fn is_order(text: &str) -> bool {
    is_json(text, is_order_value)
}

fn is_order_value(value: &Value) -> bool {
    value.as_object().is_some_and(|o| o.len() == 2)
        && is_integer(&value["count"], 1, 99)
        && is_one_of(&value["item"], &["nails", "sword", "horseshoe"])
}

fn is_list(value: &Value, min: usize, max: usize, conforms: impl Fn(&Value) -> bool) -> bool {
    let items = value.as_array();
    items.is_some_and(|items| (min..=max).contains(&items.len()) && items.iter().all(conforms))
}

fn is_integer(value: &Value, min: i64, max: i64) -> bool {
    value.as_i64().is_some_and(|number| (min..=max).contains(&number))
}

fn is_one_of(value: &Value, texts: &[&str]) -> bool {
    value.as_str().is_some_and(|text| texts.contains(&text))
}

fn is_text(value: &Value, min: usize, max: usize) -> bool {
    value.as_str().is_some_and(|text| is_of(text, min, max, |_| true))
}

/// Whether a text has `min` to `max` characters, all of a kind.
fn is_of(text: &str, min: usize, max: usize, kind: impl Fn(char) -> bool) -> bool {
    (min..=max).contains(&text.chars().count()) && text.chars().all(kind)
}

pub async fn measure(engine: &Engine) -> Result<Section, Failure> {
    const NAME: &str = "constraints, conforming";
    let cases = cases();
    let mut section = Section::new(NAME);
    let mut cut = 0;
    // Random tokens reach parts of a grammar that the likeliest ones do not.
    for sampling in [Sampling::greedy(), Sampling::builder().temperature(1.2).seed(7).build()?] {
        let spec = AgentSpec {
            sampling,
            max_reply_tokens: MAX_TOKENS,
            ..AgentSpec::new("You are Greta, the smith of Emberfall.")
        };
        let asks = cases
            .iter()
            .map(|case| (case.request.to_owned(), AskOptions::constraint(case.constraint.clone())));
        let heard = ask_all(engine, NAME, &spec, None, asks.collect()).await?;
        for (case, heard) in cases.iter().zip(heard) {
            cut += usize::from(!take(&mut section, case, &heard));
        }
    }
    section.others.push(("cut off by a limit", cut));
    Ok(section)
}

/// Counts a reply. Returns whether it is complete.
fn take(section: &mut Section, case: &Case, heard: &Finished) -> bool {
    if matches!(heard.reason, FinishReason::Length | FinishReason::ContextFull) {
        return false;
    }
    let is_right = heard.reason == FinishReason::EndOfTurn && (case.conforms)(&heard.text);
    section.take(is_right, || Fault {
        ask: case.request.to_owned(),
        expected: case.name.to_owned(),
        got: format!("{} ({:?})", heard.text, heard.reason),
    });
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_accepts_a_conforming_reply_and_no_other_one() {
        let replies = [
            (r#"{"count": 2, "item": "sword"}"#, r#"{"count": 0, "item": "sword"}"#),
            (r#"[{"count": 1, "item": "sword"}]"#, "[]"),
            (r#"{"mood": "angry", "why": "He shouts."}"#, r#"{"mood": "sad", "why": "Rain."}"#),
            (r#"{"note": null, "open": true}"#, r#"{"open": true}"#),
            (r#"[1, -2, "forge"]"#, r#"[1, 10, "forge"]"#),
            (
                r#"{"plan": [{"hours": 2.5, "place": "forge"}]}"#,
                r#"{"plan": [{"hours": 13, "place": "forge"}]}"#,
            ),
            ("1204-05-31", "1204-13-01"),
            ("40 silver", "040 silver"),
            ("Good morning, sir!", "good morning"),
            ("flee", "run"),
        ];
        let cases = cases();
        assert_eq!(cases.len(), replies.len());
        for (case, (good, bad)) in cases.iter().zip(replies) {
            assert!((case.conforms)(good), "{}: {good}", case.name);
            assert!(!(case.conforms)(bad), "{}: {bad}", case.name);
            assert!(!(case.conforms)(""), "{}", case.name);
            assert!(!(case.conforms)(&good[..good.len() - 1]), "{}", case.name);
        }
    }
}
