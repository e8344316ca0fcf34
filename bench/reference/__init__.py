"""Straightforward loops to measure against, written from the descriptions of the papers' released code and its habits.

A picture is opened, decoded and resized every time it is needed; tensors are in torch's default layout; autograd records frozen
networks too; models are deep-copied. Nothing here is used by the product.
"""
