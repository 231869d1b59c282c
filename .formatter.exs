[
  inputs: ["{mix,.formatter}.exs", "{config,lib,test,bench,examples}/**/*.{ex,exs}"],
  line_length: 120,
  locals_without_parens: [all: :*, check: 1, check: 2, property: 1, property: 2]
]
