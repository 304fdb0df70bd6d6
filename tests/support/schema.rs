//! The protocol's own JSON Schemas, from the folder that `MCP_SCHEMA_DIR` names.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use jsonschema::Validator;
use serde_json::{Value, json};

/// One file, with the definitions that were asked of it so far.
pub struct Schema {
    root: Value,
    compiled: Mutex<HashMap<String, Arc<Validator>>>,
}

impl Schema {
    /// `None` where nobody has said where the schemas are, as with the others.
    pub fn of_2025_11_25() -> Option<&'static Self> {
        static SCHEMA: OnceLock<Option<Schema>> = OnceLock::new();
        SCHEMA.get_or_init(|| Self::read("schema-2025-11-25.json")).as_ref()
    }

    pub fn of_2026_07_28() -> Option<&'static Self> {
        static SCHEMA: OnceLock<Option<Schema>> = OnceLock::new();
        SCHEMA.get_or_init(|| Self::read("schema-2026-07-28.json")).as_ref()
    }

    /// The extension for tasks of 2026-07-28.
    pub fn of_tasks() -> Option<&'static Self> {
        static SCHEMA: OnceLock<Option<Schema>> = OnceLock::new();
        SCHEMA.get_or_init(|| Self::read("schema-ext-tasks.json")).as_ref()
    }

    #[expect(clippy::disallowed_methods, reason = "tests are told by the environment where the schemas are")]
    fn read(file: &str) -> Option<Self> {
        let folder = std::env::var("MCP_SCHEMA_DIR").ok()?;
        let path = PathBuf::from(folder).join(file);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Some(Self { root: serde_json::from_str(&text).unwrap(), compiled: Mutex::default() })
    }

    /// Panics if `value` does not fit the definition of this name.
    pub fn check(&self, name: &str, value: &Value) {
        let validator = self.definition(name);
        let errors: Vec<_> =
            validator.iter_errors(value).map(|error| format!("{} {error}", error.instance_path())).collect();
        assert!(errors.is_empty(), "{name}: {errors:?} in {value}");
    }

    /// The same, and that `value` has no key but those that the definition names, which it need not forbid.
    pub fn check_closed(&self, name: &str, value: &Value) {
        self.check(name, value);
        let mut named = BTreeSet::new();
        self.names(&self.root["$defs"][name], &mut named);
        let keys = value.as_object().expect("an object has keys").keys();
        let strays: Vec<_> = keys.filter(|key| !named.contains(key.as_str())).collect();
        assert!(strays.is_empty(), "{name} has no {strays:?}: {value}");
    }

    fn names<'a>(&'a self, definition: &'a Value, named: &mut BTreeSet<&'a str>) {
        named.extend(definition["properties"].as_object().into_iter().flatten().map(|(name, _)| name.as_str()));
        if let Some(other) = definition["$ref"].as_str().and_then(|to| to.strip_prefix("#/$defs/")) {
            self.names(&self.root["$defs"][other], named);
        }
        for parts in ["allOf", "anyOf", "oneOf"] {
            definition[parts].as_array().into_iter().flatten().for_each(|part| self.names(part, named));
        }
    }

    fn definition(&self, name: &str) -> Arc<Validator> {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        let compile = || {
            assert!(self.root["$defs"].get(name).is_some(), "there is no definition {name}");
            let mut of_name = self.root.clone();
            of_name["$ref"] = json!(format!("#/$defs/{name}"));
            Arc::new(jsonschema::validator_for(&of_name).unwrap())
        };
        Arc::clone(compiled.entry(name.to_owned()).or_insert_with(compile))
    }
}
