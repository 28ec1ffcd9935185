#!/usr/bin/env python3
"""Writes 100 schemas as people send them: 50 types of pydantic, each in two forms.

  bench/practical_schemas.py FOLDER

As it is and in OpenAI's strict form. Needs pydantic. bench/schemas.py asks a server for an output
of each.
"""

import datetime
import decimal
import enum
import ipaddress
import json
import pathlib
import uuid
from typing import Annotated, Any, Literal, Optional, Union

import harness
from pydantic import AnyUrl, BaseModel, ConfigDict, EmailStr, Field, SecretStr
from pydantic import conlist, constr, create_model


class Color(enum.Enum):
    RED, GREEN, BLUE = "red", "green", "blue"


class Level(enum.IntEnum):
    LOW, MIDDLE, HIGH = 1, 2, 3


class Address(BaseModel):
    street: str
    city: str
    zip: str = Field(pattern=r"^\d{5}(-\d{4})?$", description="The postal code.")
    country: Literal["DE", "FR", "US"] = "US"


class Item(BaseModel):
    sku: str = Field(min_length=3, max_length=12)
    count: int = Field(ge=1, le=999)
    price: float = Field(gt=0)


class Tree(BaseModel):
    name: str
    children: list["Tree"] = []


class Expression(BaseModel):
    operator: Literal["+", "-", "*", "/"]
    left: Union["Expression", float]
    right: Union["Expression", float]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    breed: Optional[str] = None


class Strict(BaseModel):
    model_config = ConfigDict(
        extra="forbid", title="A strict one", json_schema_extra={"examples": [{"a": 1}]}
    )
    a: int


class Step(BaseModel):
    explanation: str
    output: str


Pet = Annotated[Union[Cat, Dog], Field(discriminator="kind")]
# Names of fields and their types.
TYPES = {
    "answer": {"answer": str},
    "sentiment": {
        "label": Literal["positive", "neutral", "negative"],
        "confidence": Annotated[float, Field(ge=0, le=1)]
    },
    "person": {"name": str, "age": Annotated[int, Field(ge=0, le=130)], "email": Optional[str]},
    "contact": {
        "name": str, "email": EmailStr, "phone": Annotated[str, Field(pattern=r"^\+?[0-9 ]{7,15}$")]
    },
    "address": {"address": Address},
    "invoice": {
        "number": str, "date": datetime.date, "items": list[Item], "total": float,
        "bill_to": Address
    },
    "order": {
        "id": uuid.UUID, "items": Annotated[list[Item], Field(min_length=1, max_length=5)],
        "note": Optional[str]
    },
    "event": {
        "title": str, "start": datetime.datetime, "end": datetime.datetime, "attendees": list[str]
    },
    "recipe": {"name": str, "minutes": int, "ingredients": list[str], "steps": list[str]},
    "reasoning": {"steps": list[Step], "final_answer": str},
    "tree": {"root": Tree},
    "expression": {"expression": Expression},
    "pet": {"pet": Pet},
    "pets": {"pets": list[Pet]},
    "union": {"value": Union[int, str, None]},
    "union_of_lists": {"value": Union[list[int], list[str]]},
    "enum": {"color": Color, "other": Optional[Color]},
    "integer_enum": {"level": Level},
    "tags": {"tags": list[Literal["a", "b", "c"]]},
    "set_of_enum": {"colors": set[Color]},
    "dictionary": {"scores": dict[str, float]},
    "dictionary_of_models": {"places": dict[str, Address]},
    "dictionary_by_enum": {"amounts": dict[Color, int]},
    "anything": {"payload": Any, "extra": dict[str, Any]},
    "pair": {"point": tuple[float, float], "range": tuple[int, int]},
    "open_tuple": {"parts": tuple[str, ...]},
    "constrained_string": {
        "code": constr(min_length=2, max_length=4), "slug": constr(pattern=r"^[a-z]+(-[a-z]+)*$")
    },
    "constrained_list": {"three": conlist(int, min_length=3, max_length=3)},
    "multiple": {
        "even": Annotated[int, Field(multiple_of=2)],
        "cents": Annotated[float, Field(multiple_of=0.01)]
    },
    "decimal": {
        "amount": decimal.Decimal,
        "rate": Annotated[decimal.Decimal, Field(max_digits=5, decimal_places=2)]
    },
    "time": {"at": datetime.time, "lasts": datetime.timedelta},
    "url": {"link": AnyUrl, "mirror": Optional[AnyUrl]},
    "network": {
        "v4": ipaddress.IPv4Address, "v6": ipaddress.IPv6Address, "net": ipaddress.IPv4Network
    },
    "secret": {"password": SecretStr, "path": pathlib.Path, "raw": bytes},
    "booleans": {"yes": bool, "no": Optional[bool], "always": Literal[True]},
    "constants": {"version": Literal[1], "kind": Literal["x"]},
    "mixed_literal": {"value": Literal["a", 1, True, None]},
    "nested": {"a": dict[str, list[dict[str, list[int]]]]},
    "optional_model": {"address": Optional[Address], "strict": Optional[Strict]},
    "strict": {"inner": Strict, "list": list[Strict]},
    "query": {"sql": str, "parameters": list[Union[str, int, float, bool, None]]},
    "weather": {
        "location": str, "unit": Literal["celsius", "fahrenheit"],
        "days": Annotated[int, Field(ge=1, le=14)]
    },
    "extraction": {
        "entities": list[
            create_model("Entity", text=(str, ...), type=(Literal["PER", "ORG", "LOC"], ...))
        ]
    },
    "classification": {
        "labels": Annotated[list[Color], Field(max_length=2)],
        "why": Annotated[str, Field(max_length=200)]
    },
    "function": {"name": Literal["search", "stop"], "arguments": dict[str, str]},
    "plan": {
        "goal": str,
        "steps": list[create_model("PlanStep", id=(int, ...), after=(list[int], []), do=(str, ...))]
    },
    "grades": {
        "grades": Annotated[
            list[Annotated[int, Field(ge=1, le=6)]], Field(min_length=2, max_length=4)
        ]
    },
    "money": {
        "amount": Annotated[float, Field(ge=0, lt=1_000_000)],
        "currency": Annotated[str, Field(pattern="^[A-Z]{3}$")]
    },
    "article": {
        "title": Annotated[str, Field(max_length=80)], "body": str,
        "published": Optional[datetime.datetime]
    },
    "review": {
        "stars": Annotated[int, Field(ge=1, le=5)], "pros": list[str], "cons": list[str],
        "recommend": bool
    },
}


def strict(schema):
    """A schema in OpenAI's strict form: every property is required, and there are no others."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {word: strict(part) for word, part in schema.items() if word != "default"}
    if isinstance(made.get("properties"), dict):
        made |= {"required": list(made["properties"]), "additionalProperties": False}
    return made


def main():
    parser = harness.options(__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="where the files go")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, fields in TYPES.items():
        schema = create_model(
            name, **{field: (kind, ...) for field, kind in fields.items()}
        ).model_json_schema()
        for form, made in (("pydantic", schema), ("strict", strict(schema))):
            (folder / f"{name}-{form}.json").write_text(json.dumps(made, indent=1))
    print(f"{2 * len(TYPES)} schemas in {folder}")


if __name__ == "__main__":
    main()
