"""The claims of the paper's text: what each says, the rule that checks it, and the verdict on our numbers."""
