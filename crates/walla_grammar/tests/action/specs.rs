//! Specifications: schemas of structs, limits, choices, sets.

use std::collections::HashSet;

use schemars::{JsonSchema, schema_for};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use walla_grammar::{
    ActionError, ActionSet, ActionSpec, CallFormat, CallMarkers, Compiler, CompilerOptions,
    ConstraintError, GrammarOptions, GrammarStart, ParsedCall, Vocabulary, call_grammar, check,
};

/// A kind of coin.
#[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
enum Coin {
    /// Worth little.
    Copper,
    /// Worth much.
    Gold,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
enum Mood {
    Calm,
    Angry,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Target {
    Person { name: String },
    Place { x: f32, y: f32 },
    Nowhere,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
enum Way {
    Walk,
    Ride(String),
    Fly { height: u8 },
}

/// Pays for something.
#[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Pay {
    /// Who gets the money.
    to: String,
    amount: u8,
    debt: Option<i64>,
    coin: Coin,
    mood: Option<Mood>,
    note: Option<String>,
    #[serde(default)]
    items: Vec<String>,
    at: (f32, f32),
    corners: [i32; 2],
    target: Target,
    way: Way,
    initial: char,
    is_gift: bool,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Wave;

#[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Nothing {}

fn spec<T: JsonSchema>(name: &str) -> Result<ActionSpec, ActionError> {
    ActionSpec::new(name, "A test.", &schema_for!(T).to_value())
}

#[test]
fn schemas_of_structs_are_accepted() {
    let pay = spec::<Pay>("pay").unwrap();
    let actions = ActionSet::new([pay.clone()]).unwrap();
    let original = jsonschema::validator_for(&schema_for!(Pay).to_value()).unwrap();
    let written = jsonschema::validator_for(pay.parameters()).unwrap();
    for (way, target) in [
        (Way::Walk, Target::Nowhere),
        (Way::Ride("a horse".into()), Target::Person { name: "Odo".into() }),
        (Way::Fly { height: 3 }, Target::Place { x: 1.0, y: -0.5 }),
    ] {
        let value = Pay {
            to: "Greta".into(),
            amount: 200,
            debt: None,
            coin: Coin::Gold,
            mood: Some(Mood::Calm),
            note: Some("é".into()),
            items: vec!["nails".into()],
            at: (0.5, 2.0),
            corners: [1, -1],
            target,
            way,
            initial: 'ß',
            is_gift: true,
        };
        let json = serde_json::to_value(&value).unwrap();
        assert!(original.is_valid(&json) && written.is_valid(&json), "{json}");
        let Value::Object(arguments) = json else { panic!() };
        let checked = check(&actions, ParsedCall::new("pay", arguments)).unwrap();
        let read: Pay = serde_json::from_value(Value::Object(checked.arguments)).unwrap();
        assert_eq!(read, value);
    }
    let properties = &pay.parameters()["properties"];
    assert_eq!(properties["to"]["description"], "Who gets the money.");
    assert_eq!(properties["debt"]["type"], json!(["integer", "null"]));
    assert_eq!(
        properties["coin"],
        json!({"type": "string", "enum": ["Copper", "Gold"], "description":
            "A kind of coin. \"Copper\": Worth little. \"Gold\": Worth much."})
    );
    assert_eq!(pay.parameters()["additionalProperties"], false);
    assert!(!pay.parameters().to_string().contains("$ref"));
}

#[test]
fn structs_without_fields_are_actions_without_arguments() {
    let wave = spec::<Wave>("wave").unwrap();
    assert!(wave.is_unit());
    let nothing = spec::<Nothing>("nothing").unwrap();
    assert!(!nothing.is_unit());
    for action in [wave, nothing] {
        assert_eq!(
            action.parameters(),
            &json!({"type": "object", "properties": {}, "additionalProperties": false})
        );
        assert!(action.is_possible());
    }
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
struct Tree {
    children: Vec<Tree>,
}

#[test]
fn unsupported_parts_are_named() {
    let refused = |schema: Value| ActionSpec::new("f", "", &schema).unwrap_err().to_string();
    let property = |schema: Value| refused(json!({"type": "object", "properties": {"a": schema}}));
    for (keyword, schema) in [
        ("pattern", json!({"type": "string", "pattern": "a"})),
        ("format", json!({"type": "string", "format": "date"})),
        ("additionalProperties", json!({"type": "object", "additionalProperties": {}})),
        ("additionalProperties", json!({"type": "object", "additionalProperties": true})),
        ("uniqueItems", json!({"type": "array", "items": {"type": "null"}, "uniqueItems": true})),
        ("multipleOf", json!({"type": "integer", "multipleOf": 2})),
        ("allOf", json!({"allOf": [{"type": "integer"}]})),
        ("not", json!({"type": "integer", "not": {"const": 1}})),
        ("oneOf", json!({"oneOf": [{"type": "integer"}, {"type": "number"}]})),
        ("minLength", json!({"type": "integer", "minLength": 1})),
        // A grammar could not enforce them.
        ("minimum", json!({"type": "integer", "minimum": 9_007_199_254_740_993_u64})),
        ("maximum", json!({"type": "integer", "maximum": 9_007_199_254_740_999_u64})),
        ("exclusiveMinimum", json!({"type": "number", "exclusiveMinimum": -1e300})),
        ("exclusiveMaximum", json!({"type": "integer", "exclusiveMaximum": u64::MAX})),
        ("true", json!(true)),
        ("type", json!({})),
        ("enum", json!({"enum": [[1]]})),
        ("prefixItems", json!({"type": "array", "prefixItems": [{"type": "null"}]})),
    ] {
        let error = property(schema);
        let expected =
            format!("action f: keyword \"{keyword}\" at \"/properties/a\" is not supported: ");
        assert!(error.starts_with(&expected), "{error}");
    }
    let tree = spec::<Tree>("f").unwrap_err();
    let ActionError::Of { action, error: tree } = tree else { panic!("{tree}") };
    assert_eq!(action, "f");
    assert!(
        matches!(&*tree, ActionError::Schema(ConstraintError::UnsupportedKeyword { keyword, .. })
            if keyword == "$ref"),
        "{tree}"
    );
    assert_eq!(
        refused(json!({"type": "string"})),
        "action f: the parameters of an action must be an object"
    );
    for name in ["", "1.a", "a b", "é", &"a".repeat(65)] {
        assert!(ActionSpec::new(name, "", &json!({"type": "object"})).is_err(), "{name}");
        let schema = json!({"type": "object", "properties": {name: {"type": "null"}}});
        let nested = json!({"type": "object", "properties": {"a": schema}});
        let error = ActionSpec::new("f", "", &nested).unwrap_err();
        let ActionError::Of { action, error } = error else { panic!("{error}") };
        assert!(action == "f" && matches!(*error, ActionError::Name { .. }), "{error}");
    }
    let mut deep = json!({"type": "null"});
    for _ in 0..17 {
        deep = json!({"type": "array", "items": deep});
    }
    assert!(property(deep.clone()).contains("nesting depth"));
    for _ in 0..100 {
        deep = json!({"type": "array", "items": deep});
    }
    assert!(property(deep).contains("nesting depth"));
    let wide: Vec<String> = (0..4_000).map(|index| format!("choice {index}")).collect();
    assert!(property(json!({"enum": wide})).contains("length of the schema in bytes"));
}

#[test]
fn choices_replace_the_schema_of_a_text() {
    let schema = json!({"type": "object", "properties": {
        "item": {"type": "string", "description": "What?"}, "to": {"type": ["string", "null"]},
        "all": {"type": "array", "items": {"type": "string"}}, "count": {"type": "integer"}}});
    let give = ActionSpec::new("give", "", &schema).unwrap();
    let chosen = give.with_choices("item", ["nails", "sword", "nails"]).unwrap();
    assert_eq!(
        chosen.parameters()["properties"]["item"],
        json!({"type": "string", "description": "What?", "enum": ["nails", "sword"]})
    );
    assert_ne!(chosen, give);
    assert_eq!(chosen.with_choices("item", ["a"]), give.with_choices("item", ["a"]));
    let all = give.with_choices("all", ["a"]).unwrap();
    assert_eq!(all.parameters()["properties"]["all"]["items"]["enum"], json!(["a"]));
    let to = give.with_choices("to", ["Odo"]).unwrap();
    assert_eq!(to.parameters()["properties"]["to"]["anyOf"][0]["enum"], json!(["Odo"]));
    assert!(to.with_choices("to", ["Ida"]).is_ok());
    let none = give.with_choices("item", Vec::<String>::new()).unwrap();
    assert!(!none.is_possible());
    assert!(none.with_choices("item", ["a"]).unwrap().is_possible());
    assert!(matches!(give.with_choices("no", ["a"]), Err(ActionError::NoProperty { .. })));
    assert!(matches!(give.with_choices("count", ["a"]), Err(ActionError::NotText { .. })));
    let long = (0..3_000).map(|index| format!("choice {index}"));
    let message = give.with_choices("item", long).unwrap_err().to_string();
    assert!(message.contains("give") && message.contains("more than the limit"), "{message}");
    // A value that no call can have is found here, not when a call opens.
    let message = give.with_choices("item", ["axe\u{7f}"]).unwrap_err().to_string();
    assert!(message.contains("give") && message.contains("item"), "{message}");
}

/// The source of the grammar of a required call.
fn grammar_of(set: &ActionSet) -> String {
    let markers = CallMarkers::new(CallFormat::Plain, &crate::common::plain());
    let grammar =
        call_grammar(&markers, set, GrammarOptions { start: GrammarStart::Call, max_calls: 1 })
            .unwrap();
    grammar.sources().concat()
}

/// Prompts keep their list: the type's schema or the latest listed choices.
#[test]
fn unlisted_choices_are_in_the_grammar_alone() {
    let schema = json!({"type": "object", "properties": {
        "item": {"type": "string", "description": "What?", "default": "sword"},
        "to": {"type": ["string", "null"]}, "all": {"type": "array", "items": {"type": "string"}},
        "kind": {"enum": ["raw", "done"]}, "count": {"type": "integer"}}});
    let give = ActionSpec::new("give", "Gives.", &schema).unwrap();
    let of = |spec: &ActionSpec| ActionSet::new([spec.clone()]).unwrap();
    let chosen = give.with_unlisted_choices("item", ["nails", "sword", "nails"]).unwrap();
    let item = |spec: &ActionSpec| spec.parameters()["properties"]["item"].clone();
    let plain = json!({"type": "string", "description": "What?"});
    assert_eq!(item(chosen.listed()), plain, "and a default that may be none of the choices goes");
    let listed = json!({"type": "string", "description": "What?", "enum": ["nails", "sword"]});
    assert_eq!(item(&chosen), listed, "for servers");
    assert!(json!(of(&chosen).tools()).to_string().contains("nails"));
    let unlisted = ("item".to_owned(), vec!["nails".to_owned(), "sword".to_owned()]);
    assert_eq!((chosen.unlisted_choices(), give.unlisted_choices()), (vec![unlisted], vec![]));
    for property in ["item", "to", "all", "kind"] {
        let chosen = give.with_unlisted_choices(property, ["nails"]).unwrap();
        let other = chosen.with_unlisted_choices(property, ["a", "b"]).unwrap();
        let none = other.with_unlisted_choices(property, [""; 0]).unwrap();
        assert!(chosen != other && other != none && chosen != *chosen.listed(), "{property}");
        assert!(!none.is_possible() && none.listed().is_possible(), "{property}");
        assert!(of(&none).is_empty() && !of(&none).listed().is_empty(), "{property}");
        for format in CallFormat::ALL {
            let [text, as_other, as_none] =
                [&chosen, &other, &none].map(|spec| of(spec).listed().description(format));
            assert!(text == as_other && text == as_none && !text.contains("nails"), "{text}");
        }
        let tools = [&chosen, &other, &none].map(|spec| json!(of(spec).listed().tools()));
        assert!(tools[0] == tools[1] && tools[0] == tools[2], "{tools:?}");
        let grammar = |spec| grammar_of(&of(spec));
        assert!(grammar(&chosen).contains("nails") && !grammar(&other).contains("nails"));
        // The latest choices of a property decide.
        let again = other.with_choices(property, ["nails"]).unwrap();
        assert_eq!(again.unlisted_choices(), vec![], "{property}");
        assert_eq!(again.parameters(), again.listed().parameters());
    }
    let [a, b] = [["raw"], ["nails"]].map(|kinds| {
        let both = give.with_choices("item", ["nails", "sword"]).unwrap();
        both.with_unlisted_choices("item", ["nails"])
            .and_then(|spec| spec.with_unlisted_choices("kind", kinds))
            .unwrap()
    });
    assert_eq!(a.listed(), b.listed());
    assert_eq!(item(a.listed()), listed, "all that there can be is listed");
    assert_eq!((item(&a)["enum"].clone(), a.unlisted_choices().len()), (json!(["nails"]), 2));
    let to = a.with_choices("to", ["Odo"]).unwrap();
    assert!(to.listed().parameters()["properties"]["to"].to_string().contains("Odo"));
    assert_eq!(to.unlisted_choices(), a.unlisted_choices());
    let refused = |property, value: &str| give.with_unlisted_choices(property, [value]);
    assert!(matches!(refused("no", "a"), Err(ActionError::NoProperty { .. })));
    assert!(matches!(refused("count", "a"), Err(ActionError::NotText { .. })));
    assert!(refused("item", "axe\u{7f}").unwrap_err().to_string().contains("give"));
    let long = refused("item", &"x".repeat(20_000)).unwrap_err().to_string();
    assert!(long.contains("give") && long.contains("choices"), "{long}");
}

#[test]
fn sets_are_compared_by_content() {
    let action = |name: &str, keys: [&str; 2]| {
        let text = json!({"type": "string"});
        let schema = json!({"type": "object", "properties": {keys[0]: text, keys[1]: text}});
        ActionSpec::new(name, "Does  it.\n", &schema).unwrap()
    };
    let set = |keys| ActionSet::new([action("a", keys), action("b", keys)]).unwrap();
    let sets = HashSet::from([set(["x", "y"]), set(["x", "y"]), set(["y", "x"])]);
    assert_eq!(sets.len(), 2, "the order of properties is part of the content");
    let keys = ["x", "y"];
    let double = ActionSet::new([action("a", keys), action("a", keys)]).unwrap_err();
    assert_eq!(double, ActionError::Duplicate { name: "a".into() });
    let many = (0..65).map(|index| action(&format!("a{index}"), keys));
    assert!(matches!(
        ActionSet::new(many),
        Err(ActionError::Schema(ConstraintError::TooLarge { .. }))
    ));
    let none = action("a", keys).with_choices("x", [""; 0]).unwrap();
    let some = ActionSet::new([none, action("b", keys)]).unwrap();
    assert_eq!(some.possible().count(), 1);
    assert!(some.get("a").is_none() && some.get("b").is_some());
    assert!(!some.is_empty() && ActionSet::default().is_empty());
}

#[test]
fn tools_and_descriptions_are_deterministic() {
    let schema = json!({"type": "object", "properties": {
        "item": {"enum": ["nails", "sword"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 9, "description": "How many."},
        "to": {"type": ["string", "null"]}}, "required": ["item", "count"]});
    let give = ActionSpec::new("give", "Hands an item over.", &schema).unwrap();
    let wave = ActionSpec::new("wave", "", &json!({"type": "null"})).unwrap();
    let actions = ActionSet::new([wave, give]).unwrap();
    let tools = json!(actions.tools()).to_string();
    let wave = r#"{"type":"function","function":{"name":"wave","description":"","parameters":
        {"type":"object","properties":{},"additionalProperties":false}}}"#;
    let give = r#"{"type":"function","function":{"name":"give",
        "description":"Hands an item over.","parameters":{"type":"object","properties":
        {"item":{"type":"string","enum":["nails","sword"]},
        "count":{"type":"integer","description":"How many.","minimum":1,"maximum":9},
        "to":{"type":["string","null"]}},"required":["item","count"],
        "additionalProperties":false}}}"#;
    let joined = |text: &str| text.replace("\n        ", "");
    assert_eq!(tools, format!("[{},{}]", joined(wave), joined(give)));
    assert_eq!(
        actions.description(CallFormat::Plain),
        "Actions:\n\
         wave()\n\
         give(item: \"nails\"|\"sword\", count: integer 1 to 9, to?: text or null): \
         Hands an item over.\n\
         \x20 count: How many.\n\
         To act, write a call like this:\n\
         <tool_call>\n\
         {\"name\": \"give\", \"arguments\": {\"item\": \"nails\", \"count\": 1}}\n\
         </tool_call>"
    );
    for format in CallFormat::ALL {
        let text = actions.description(format);
        assert_eq!(text, actions.description(format));
        assert!(text.contains("give"), "{text}");
    }
    assert_eq!(ActionSet::default().description(CallFormat::Plain), "");
}

/// What `ActionSpec::new` accepts, an ask can list and constrain.
#[test]
fn an_action_of_any_depth_is_refused_when_it_is_made_or_can_be_used() {
    let tokenizer = crate::common::plain();
    let vocabulary = Vocabulary::new(tokenizer.clone()).unwrap();
    let compiler = Compiler::new(vocabulary, CompilerOptions::default());
    let markers = CallMarkers::new(CallFormat::Plain, &tokenizer);
    let object = |inner: Value| json!({"type": "object", "properties": {"a": inner}});
    let list = |inner: Value| json!({"type": "array", "items": inner});
    let kinds = [("objects", &object as &dyn Fn(Value) -> Value, 16), ("lists", &list, 15)];
    for (kind, wrap, max_depth) in kinds {
        for depth in 0..=20 {
            let inner = (0..depth).fold(json!({"enum": ["x", "y"]}), |inner, _| wrap(inner));
            let is_object = kind == "objects" && depth > 0;
            let parameters = if is_object { inner } else { object(inner) };
            let spec = ActionSpec::new("deep", "", &parameters);
            assert_eq!(spec.is_ok(), depth <= max_depth, "{depth} {kind}: {spec:?}");
            let Ok(spec) = spec else { continue };
            let set = ActionSet::new([spec]).unwrap();
            let listed = walla_model::chat::Tools::new(&json!(set.tools()), "");
            assert!(listed.is_ok(), "{depth} {kind}: {listed:?}");
            let options = GrammarOptions { start: GrammarStart::Call, max_calls: 1 };
            let grammar = call_grammar(&markers, &set, options).unwrap();
            let compiled = compiler.compile(&grammar);
            assert!(compiled.is_ok(), "{depth} {kind}: {:?}", compiled.err());
        }
    }
}
