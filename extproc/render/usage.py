"""A filter that tells extproc, by the log `ends`, what engines say of tokens."""

from extproc.render.parts import Part, any_of

_LUA = """\
-- Usage stands at the end of an answer: the last four pieces are kept, and of a long one its end.
-- Texts cannot fake it, for their quotes are escaped.
function envoy_on_response(answer)
  local a, b, c, d = "", "", "", ""
  for piece in answer:bodyChunks() do
    local bytes = piece:length()
    if bytes > 1024 then
      a, b, c, d = "", "", "", piece:getBytes(bytes - 1024, 1024)
    elseif bytes > 0 then
      a, b, c, d = b, c, d, piece:getBytes(0, bytes)
    end
  end
  -- Without the ^ it would be tried at every place of a text that has none: its length squared.
  local usage = (a .. b .. c .. d):match('^.*"usage"%s*:%s*(%b{})')
  if not usage then return end
  local told = answer:streamInfo():dynamicMetadata()
  local function tell(key, name)
    local number = usage:match('"' .. name .. '"%s*:%s*(%d+)%s*[,}]')
    if number then told:set("extproc.usage", key, tonumber(number)) end
  end
  tell("prompt_tokens", "prompt_tokens")
  tell("completion_tokens", "completion_tokens")
  tell("prompt_tokens", "input_tokens")  -- as /v1/responses calls them
  tell("completion_tokens", "output_tokens")
end
"""


def usage_filter() -> Part:
    """The HTTP filter; it stands before that of the external processor."""
    script = any_of("extensions.filters.http.lua.v3.Lua", default_source_code={"inline_string": _LUA})
    return {"name": "usage-of-answers", "typed_config": script}
